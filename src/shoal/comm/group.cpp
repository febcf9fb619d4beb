#include "shoal/comm/group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/hash.h"
#include "shoal/collective/codec/coded_exchange.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/operation_check.h"

namespace shoal::comm {
namespace {

using collective::Operation;

collective::MemoryKind memory_of(const at::Tensor& tensor) {
  return tensor.is_cpu() ? collective::MemoryKind::kHost : collective::MemoryKind::kDevice;
}

Operation operation_of(Kind kind, const at::Tensor& tensor, const Options& options) {
  return {.kind = kind,
          .type = element_type(tensor.scalar_type()),
          .reduction = options.reduction,
          .memory = memory_of(tensor),
          .tag = options.label,
          .priority = options.priority,
          .scale = options.scale,
          .coding = options.coding,
          .feedback = options.feedback,
          .timeout = options.timeout};
}

/// An all-reduce with a codec among one: the bits of a group, whose values are encoded twice.
Work encode_alone(const at::Tensor& tensor, const Options& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.contiguous();
  Operation operation = operation_of(Kind::kAllReduce, values, options);
  operation.buffer = {values.const_data_ptr(), values.data_ptr(),
                      static_cast<std::size_t>(values.numel())};
  collective::check_operation(operation, 0, 1, "a group of one");
  collective::CodedExchange alone(operation, 0, 1);
  alone.add_up();
  alone.finish();
  if (!values.is_same(tensor)) tensor.copy_(values);
  return {};
}

/// Throws for options that only an all-reduce with a codec has. A communicator does so as well, but
/// a group of one has none.
void refuse_codec(Kind kind, const Options& options) {
  SHOAL_USER_CHECK(options.coding.codec == collective::Codec::kNone && options.feedback == nullptr,
                   name(kind),
                   "a codec needs an all_reduce of one tensor, and error feedback needs a codec");
}

/// A reduction among one: the tensor itself, unless it is scaled.
Work reduce_alone(Kind kind, const at::Tensor& output, const at::Tensor& input,
                  const Options& options) {
  const ElementType type = element_type(input.scalar_type());
  refuse_codec(kind, options);
  SHOAL_USER_CHECK(collective::supports_fold(type, options.reduction), name(kind),
                   "there is no {} of {} by {}", name(kind), shoal::name(type),
                   name(options.reduction));
  // The bits are those of a group: the same `fold`, of one source.
  const at::NoGradGuard no_grad;
  at::Tensor result = input;
  if (options.reduction == Reduction::kPremulSum && !input.is_cpu()) {
    result = input.mul(options.scale);
  } else if (options.reduction == Reduction::kPremulSum) {
    const at::Tensor in = input.contiguous();
    result = at::empty(input.sizes(), input.options());
    const void* source = in.const_data_ptr();
    void* target = result.data_ptr();
    collective::fold(type, options.reduction, &source, 1, &target, 1,
                     static_cast<std::size_t>(in.numel()), options.scale);
  }
  if (!result.is_same(output)) output.copy_(result.reshape(output.sizes()));
  return {};
}

Work copy_alone(Kind kind, const at::Tensor& output, const at::Tensor& input,
                const Options& options) {
  refuse_codec(kind, options);
  const at::NoGradGuard no_grad;
  if (!output.is_same(input)) output.copy_(input.reshape(output.sizes()));
  return {};
}

/// Returns a label that tells calls with tensors of another type or shape apart, whatever their
/// size in dimension `dim`.
std::uint32_t label_of_parts(const at::Tensor& own, std::int64_t dim) {
  std::uint64_t hash = splitmix64(static_cast<std::uint64_t>(own.scalar_type()));
  for (std::int64_t d = 0; d < own.dim(); ++d)
    hash = splitmix64(hash ^ static_cast<std::uint64_t>(d == dim ? -1 : own.size(d)));
  return static_cast<std::uint32_t>(hash);
}

}  // namespace

Group::Group(std::shared_ptr<collective::Communicator> communicator,
             std::shared_ptr<void> keep_alive) {
  if (communicator)
    engine_ = std::make_shared<Engine>(std::move(communicator), std::move(keep_alive));
}

bool Group::supports(Kind kind, at::ScalarType type, Reduction reduction) const {
  return size() == 1 || engine_->communicator()->supports(kind, element_type(type), reduction);
}

Work Group::all_reduce(const at::Tensor& tensor, const Options& options) const {
  const bool coded = options.coding.codec != collective::Codec::kNone;
  if (size() == 1 && coded) return encode_alone(tensor, options);
  if (size() == 1) return reduce_alone(Kind::kAllReduce, tensor, tensor, options);
  Operation operation = operation_of(Kind::kAllReduce, tensor, options);
  return engine_->start(operation, tensor, tensor, options.async);
}

Work Group::all_reduce(at::ArrayRef<at::Tensor> tensors, const Options& options) const {
  if (tensors.size() == 1) return all_reduce(tensors[0], options);
  if (size() == 1) {
    for (const at::Tensor& tensor : tensors)
      reduce_alone(Kind::kAllReduce, tensor, tensor, options);
  }
  if (size() == 1 || tensors.empty()) return {};
  Operation operation = operation_of(Kind::kAllReduce, tensors[0], options);
  return engine_->start(operation, tensors, tensors, options.async);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input,
                       const Options& options) const {
  SHOAL_USER_CHECK(output.numel() == input.numel() * size(), "all_gather",
                   "output has {} elements, not {} x {}", output.numel(), size(), input.numel());
  if (size() == 1) return copy_alone(Kind::kAllGather, output, input, options);
  Operation operation = operation_of(Kind::kAllGather, input, options);
  operation.shared_output = options.shared_output;
  return engine_->start(operation, output, input, options.async);
}

Work Group::all_gather(at::ArrayRef<at::Tensor> outputs, at::ArrayRef<at::Tensor> inputs,
                       const Options& options) const {
  SHOAL_USER_CHECK(outputs.size() == inputs.size(), "all_gather", "{} outputs for {} inputs",
                   outputs.size(), inputs.size());
  SHOAL_USER_CHECK(!options.shared_output, "all_gather",
                   "one output per node needs a call with one tensor");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SHOAL_USER_CHECK(outputs[i].numel() == inputs[i].numel() * size(), "all_gather",
                     "output {} has {} elements, not {} x {}", i, outputs[i].numel(), size(),
                     inputs[i].numel());
  }
  if (size() == 1)
    for (std::size_t i = 0; i < inputs.size(); ++i) all_gather(outputs[i], inputs[i], options);
  if (size() == 1 || inputs.empty()) return {};
  Operation operation = operation_of(Kind::kAllGather, inputs[0], options);
  return engine_->start(operation, outputs, inputs, options.async);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           const Options& options) const {
  SHOAL_USER_CHECK(input.numel() == output.numel() * size(), "reduce_scatter",
                   "input has {} elements, not {} x {}", input.numel(), size(), output.numel());
  if (size() == 1) return reduce_alone(Kind::kReduceScatter, output, input, options);
  Operation operation = operation_of(Kind::kReduceScatter, input, options);
  return engine_->start(operation, output, input, options.async);
}

Work Group::reduce_scatter(at::ArrayRef<at::Tensor> outputs, at::ArrayRef<at::Tensor> inputs,
                           const Options& options) const {
  SHOAL_USER_CHECK(outputs.size() == inputs.size(), "reduce_scatter", "{} outputs for {} inputs",
                   outputs.size(), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SHOAL_USER_CHECK(inputs[i].numel() == outputs[i].numel() * size(), "reduce_scatter",
                     "input {} has {} elements, not {} x {}", i, inputs[i].numel(), size(),
                     outputs[i].numel());
  }
  if (size() == 1) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      reduce_alone(Kind::kReduceScatter, outputs[i], inputs[i], options);
  }
  if (size() == 1 || inputs.empty()) return {};
  Operation operation = operation_of(Kind::kReduceScatter, inputs[0], options);
  return engine_->start(operation, outputs, inputs, options.async);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input,
                       std::vector<std::size_t> receive_counts,
                       std::vector<std::size_t> send_counts, const Options& options) const {
  const auto ranks = static_cast<std::size_t>(size());
  const auto sum = [](const std::vector<std::size_t>& counts) {
    std::size_t total = 0;
    for (const std::size_t count : counts) total += count;
    return static_cast<std::int64_t>(total);
  };
  if (receive_counts.empty() && send_counts.empty()) {
    SHOAL_USER_CHECK(input.numel() == output.numel() && input.numel() % size() == 0, "all_to_all",
                     "input has {} elements, output {}, for {} ranks", input.numel(),
                     output.numel(), size());
  } else {
    SHOAL_USER_CHECK(send_counts.size() == ranks && receive_counts.size() == ranks &&
                         sum(send_counts) == input.numel() && sum(receive_counts) == output.numel(),
                     "all_to_all", "counts to send {} of {} elements and to receive {} of {}",
                     send_counts, input.numel(), receive_counts, output.numel());
  }
  if (size() == 1) return copy_alone(Kind::kAllToAll, output, input, options);
  Operation operation = operation_of(Kind::kAllToAll, input, options);
  // The spans point to this function's parameters; they are read during `start` only.
  operation.send_counts = send_counts;
  operation.receive_counts = receive_counts;
  return engine_->start(operation, output, input, options.async);
}

Work Group::broadcast(const at::Tensor& tensor, int root, const Options& options) const {
  if (size() == 1) return copy_alone(Kind::kBroadcast, tensor, tensor, options);
  Operation operation = operation_of(Kind::kBroadcast, tensor, options);
  operation.peer = root;
  return engine_->start(operation, tensor, tensor, options.async);
}

Work Group::broadcast(at::ArrayRef<at::Tensor> tensors, int root, const Options& options) const {
  if (size() == 1) {
    for (const at::Tensor& tensor : tensors) copy_alone(Kind::kBroadcast, tensor, tensor, options);
  }
  if (size() == 1 || tensors.empty()) return {};
  Operation operation = operation_of(Kind::kBroadcast, tensors[0], options);
  operation.peer = root;
  return engine_->start(operation, tensors, tensors, options.async);
}

Work Group::reduce(const at::Tensor& tensor, int root, const Options& options) const {
  if (size() == 1) return reduce_alone(Kind::kReduce, tensor, tensor, options);
  Operation operation = operation_of(Kind::kReduce, tensor, options);
  operation.peer = root;
  return engine_->start(operation, tensor, tensor, options.async);
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root,
                   const Options& options) const {
  if (size() == 1) return copy_alone(Kind::kGather, output, input, options);
  // Only the root has an output. The engine wants a tensor for it all the same, and the input
  // stands in: it is not written.
  const at::Tensor& target = rank() == root ? output : input;
  SHOAL_USER_CHECK(rank() != root || output.numel() == input.numel() * size(), "gather",
                   "output has {} elements, not {} x {}", output.numel(), size(), input.numel());
  Operation operation = operation_of(Kind::kGather, input, options);
  operation.peer = root;
  return engine_->start(operation, target, input, options.async);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                    const Options& options) const {
  if (size() == 1) return copy_alone(Kind::kScatter, output, input, options);
  // Only the root has an input. The output stands in for it elsewhere and is not read.
  const at::Tensor& source = rank() == root ? input : output;
  SHOAL_USER_CHECK(rank() != root || input.numel() == output.numel() * size(), "scatter",
                   "input has {} elements, not {} x {}", input.numel(), size(), output.numel());
  Operation operation = operation_of(Kind::kScatter, output, options);
  operation.peer = root;
  return engine_->start(operation, output, source, options.async);
}

Work Group::send(const at::Tensor& tensor, int destination, std::uint32_t tag,
                 const Options& options) const {
  SHOAL_USER_CHECK(destination >= 0 && destination < size() && destination != rank(), "send",
                   "rank {} cannot send to rank {} of {}", rank(), destination, size());
  Operation operation = operation_of(Kind::kSend, tensor, options);
  operation.peer = destination;
  operation.tag = tag;
  return engine_->start(operation, tensor, tensor, options.async);
}

Work Group::recv(const at::Tensor& tensor, int source, std::uint32_t tag,
                 const Options& options) const {
  SHOAL_USER_CHECK(source >= -1 && source < size() && source != rank(), "recv",
                   "rank {} cannot receive from rank {} of {}", rank(), source, size());
  Operation operation = operation_of(Kind::kReceive, tensor, options);
  operation.peer = source;
  operation.tag = tag;
  return engine_->start(operation, tensor, tensor, options.async);
}

Work Group::barrier(const Options& options) const {
  refuse_codec(Kind::kBarrier, options);
  if (size() == 1) return {};
  Operation operation{.kind = Kind::kBarrier,
                      .tag = options.label,
                      .priority = options.priority,
                      .timeout = options.timeout};
  return engine_->start(operation, {}, {}, options.async);
}

double Group::sum(double value) const {
  if (size() == 1) return value;
  const at::Tensor number = at::empty({1}, at::kDouble);
  *number.data_ptr<double>() = value;
  all_reduce(number);
  return *number.const_data_ptr<double>();
}

Group Group::split(int color, int key, std::string name) const {
  if (size() == 1) return {};
  const std::uint64_t id = engine_->next_part_id(color);
  // The new group may outlive this one.
  Group part(engine_->communicator()->split(color, key), engine_->keep_alive());
  if (part.engine_) {
    engine_->count(*part.engine_);
    part.engine_->set_name(name.empty() ? engine_->group_name() : std::move(name), id);
  }
  return part;
}

Group Group::over(const std::function<std::shared_ptr<collective::Communicator>(
                      std::shared_ptr<collective::Communicator>)>& wrap) const {
  if (!engine_) return {};
  Group group(wrap(engine_->communicator()), engine_->keep_alive());
  engine_->count(*group.engine_);
  group.engine_->set_name(engine_->group_name(), engine_->next_part_id(0));
  return group;
}

Group Group::on_host() const {
  if (size() == 1) return {};
  // Ranks that share memory have one node number, and the key keeps their order.
  return split(engine_->communicator()->node(), rank(), engine_->group_name() + " on node");
}

void Group::abort(const Error& cause) const {
  if (engine_) engine_->communicator()->abort(cause);
}

void Group::poll() const {
  if (engine_) engine_->poll();
}

void Group::check() const {
  if (engine_) engine_->communicator()->look_for_failure();
}

std::shared_ptr<SharedBuffer> Group::shared_buffer(std::size_t bytes) const {
  if (size() == 1) return std::make_shared<SharedBuffer>(bytes);
  collective::SharedMemory* shared = engine_->communicator()->shared_memory();
  std::shared_ptr<std::byte> memory = shared ? shared->allocate(bytes) : nullptr;
  if (!memory) return nullptr;
  // The buffer holds the engine for its barriers, and may so outlive the group.
  return std::make_shared<SharedBuffer>(engine_, std::move(memory), bytes);
}

std::optional<Lent> Group::lend_in_place(const at::Tensor& own, std::int64_t dim) const {
  SHOAL_USER_CHECK(dim >= 0 && dim < own.dim(), "lend", "dimension {} of a tensor of {}", dim,
                   own.dim());
  if (size() == 1) return Lent({own.detach().contiguous()}, false);
  const at::Tensor part = own.detach().contiguous();
  auto loan = engine_->lend(part, label_of_parts(part, dim));
  if (!loan) return std::nullopt;
  return Lent(engine_, std::move(loan), part, dim);
}

Lent Group::lend(const at::Tensor& own, std::int64_t dim) const {
  if (auto lent = lend_in_place(own, dim)) return *std::move(lent);
  // An all-gather of the sizes, and one of the parts, each as long as the longest.
  const at::NoGradGuard no_grad;
  const Options options{.label = label_of_parts(own, dim)};
  const at::Tensor sizes = at::empty({size()}, at::kLong);
  const at::Tensor own_size = at::empty({1}, at::kLong);
  *own_size.data_ptr<std::int64_t>() = own.size(dim);
  all_gather(sizes, own_size, options);
  const std::span<const std::int64_t> by_rank(sizes.const_data_ptr<std::int64_t>(),
                                              static_cast<std::size_t>(size()));
  std::vector<std::int64_t> shape = own.sizes().vec();
  std::int64_t& extent = shape[static_cast<std::size_t>(dim)];
  const auto elements = [&](std::int64_t count) {
    extent = count;
    return c10::multiply_integers(shape);
  };
  const std::int64_t most = elements(*std::max_element(by_rank.begin(), by_rank.end()));
  at::Tensor input = own.detach().contiguous().view(-1);
  if (input.numel() < most) {
    const at::Tensor padded = at::zeros({most}, input.options());
    padded.narrow(0, 0, input.numel()).copy_(input);
    input = padded;
  }
  const at::Tensor all = at::empty({size(), most}, input.options());
  all_gather(all, input, options);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < size(); ++rank) {
    const std::int64_t count = elements(by_rank[static_cast<std::size_t>(rank)]);
    parts.push_back(all[rank].narrow(0, 0, count).view(shape));
  }
  return Lent(std::move(parts), true);
}

bool Group::visible_to_peers(const at::Tensor& tensor) const {
  if (size() == 1) return true;
  const collective::SharedMemory* shared = engine_->communicator()->shared_memory();
  return shared && tensor.is_cpu() && shared->visible(tensor.const_data_ptr(), tensor.nbytes());
}

}  // namespace shoal::comm
