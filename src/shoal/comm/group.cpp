#include "shoal/comm/group.h"

#include <fmt/ranges.h>

#include "shoal/base/check.h"
#include "shoal/comm/local_shared_buffer.h"

namespace shoal::comm {
namespace {

using collective::Buffer;
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
          .timeout = options.timeout};
}

}  // namespace

bool Group::supports(Kind kind, at::ScalarType type, Reduction reduction) const {
  return size() == 1 || engine_->supports(kind, element_type(type), reduction);
}

/// Carries out a collective whose output and input are single tensors, by way of contiguous copies where they are not.
Work Group::call(Operation& operation, const at::Tensor& output, const at::Tensor& input, const Options& options) const {
  SHOAL_USER_CHECK(output.scalar_type() == input.scalar_type(), name(operation.kind), "input is {}, output {}", c10::toString(input.scalar_type()),
                   c10::toString(output.scalar_type()));
  if (output.is_contiguous() && input.is_contiguous()) {
    operation.buffer.input = input.const_data_ptr(), operation.buffer.output = output.data_ptr();
    return engine_->start({operation, input, output, !options.async});
  }
  const at::Tensor in = input.contiguous();
  const at::Tensor out = output.is_contiguous() ? output : input.is_same(output) ? in : output.contiguous();
  operation.buffer.input = in.const_data_ptr(), operation.buffer.output = out.data_ptr();
  Work work = engine_->start({operation, in, out, true});
  if (!out.is_same(output)) output.copy_(out);
  return work;
}

Work Group::all_reduce(const at::Tensor& tensor, const Options& options) const {
  if (size() == 1) return {};
  Operation operation = operation_of(Kind::kAllReduce, tensor, options);
  operation.buffer.count = static_cast<std::size_t>(tensor.numel());
  return call(operation, tensor, tensor, options);
}

Work Group::all_reduce(at::ArrayRef<at::Tensor> tensors, const Options& options) const {
  if (size() == 1 || tensors.empty()) return {};
  bool direct = true;
  for (const at::Tensor& tensor : tensors) {
    SHOAL_USER_CHECK(tensor.scalar_type() == tensors[0].scalar_type(), "all_reduce", "a coalesced call takes one type: {} and {}",
                     c10::toString(tensors[0].scalar_type()), c10::toString(tensor.scalar_type()));
    direct = direct && tensor.is_contiguous();
  }
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& tensor : tensors) contiguous.push_back(tensor.contiguous());
  std::vector<Buffer> buffers;
  for (const at::Tensor& tensor : contiguous)
    buffers.push_back({tensor.const_data_ptr(), tensor.data_ptr(), static_cast<std::size_t>(tensor.numel())});
  Operation operation = operation_of(Kind::kAllReduce, tensors[0], options);
  operation.buffer = buffers[0], operation.more = std::span(buffers).subspan(1);
  Work work = engine_->start({operation, contiguous, contiguous, !options.async || !direct});
  for (std::size_t i = 0; i < contiguous.size(); ++i)
    if (!contiguous[i].is_same(tensors[i])) tensors[i].copy_(contiguous[i]);
  return work;
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, const Options& options) const {
  SHOAL_USER_CHECK(output.numel() == input.numel() * size(), "all_gather", "output has {} elements, not {} x {}", output.numel(), size(),
                   input.numel());
  if (size() == 1) return output.copy_(input.reshape(output.sizes())), Work();
  Operation operation = operation_of(Kind::kAllGather, input, options);
  operation.buffer.count = static_cast<std::size_t>(input.numel());
  operation.shared_output = options.shared_output;
  return call(operation, output, input, options);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Options& options) const {
  SHOAL_USER_CHECK(input.numel() == output.numel() * size(), "reduce_scatter", "input has {} elements, not {} x {}", input.numel(), size(),
                   output.numel());
  if (size() == 1) return output.copy_(input.reshape(output.sizes())), Work();
  Operation operation = operation_of(Kind::kReduceScatter, input, options);
  operation.buffer.count = static_cast<std::size_t>(output.numel());
  return call(operation, output, input, options);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<std::size_t> receive_counts,
                       std::vector<std::size_t> send_counts, const Options& options) const {
  const auto ranks = static_cast<std::size_t>(size());
  const auto sum = [](const std::vector<std::size_t>& counts) {
    std::size_t total = 0;
    for (const std::size_t count : counts) total += count;
    return static_cast<std::int64_t>(total);
  };
  if (receive_counts.empty() && send_counts.empty()) {
    SHOAL_USER_CHECK(input.numel() == output.numel() && input.numel() % size() == 0, "all_to_all", "input has {} elements, output {}, for {} ranks",
                     input.numel(), output.numel(), size());
  } else {
    SHOAL_USER_CHECK(
        send_counts.size() == ranks && receive_counts.size() == ranks && sum(send_counts) == input.numel() && sum(receive_counts) == output.numel(),
        "all_to_all", "counts to send {} of {} elements and to receive {} of {}", send_counts, input.numel(), receive_counts, output.numel());
  }
  if (size() == 1) return output.copy_(input.reshape(output.sizes())), Work();
  Operation operation = operation_of(Kind::kAllToAll, input, options);
  operation.buffer.count = send_counts.empty() ? static_cast<std::size_t>(input.numel()) / ranks : 0;
  operation.send_counts = send_counts, operation.receive_counts = receive_counts;
  return call(operation, output, input, options);
}

Work Group::broadcast(const at::Tensor& tensor, int root, const Options& options) const {
  if (size() == 1) return {};
  Operation operation = operation_of(Kind::kBroadcast, tensor, options);
  operation.buffer.count = static_cast<std::size_t>(tensor.numel());
  operation.peer = root;
  return call(operation, tensor, tensor, options);
}

Work Group::reduce(const at::Tensor& tensor, int root, const Options& options) const {
  if (size() == 1) return {};
  Operation operation = operation_of(Kind::kReduce, tensor, options);
  operation.buffer.count = static_cast<std::size_t>(tensor.numel());
  operation.peer = root;
  return call(operation, tensor, tensor, options);
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root, const Options& options) const {
  if (size() == 1) return output.copy_(input.reshape(output.sizes())), Work();
  const at::Tensor& target = rank() == root ? output : input;
  SHOAL_USER_CHECK(rank() != root || output.numel() == input.numel() * size(), "gather", "output has {} elements, not {} x {}", output.numel(),
                   size(), input.numel());
  Operation operation = operation_of(Kind::kGather, input, options);
  operation.buffer.count = static_cast<std::size_t>(input.numel());
  operation.peer = root;
  return call(operation, target, input, options);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root, const Options& options) const {
  if (size() == 1) return output.copy_(input.reshape(output.sizes())), Work();
  const at::Tensor& source = rank() == root ? input : output;
  SHOAL_USER_CHECK(rank() != root || input.numel() == output.numel() * size(), "scatter", "input has {} elements, not {} x {}", input.numel(), size(),
                   output.numel());
  Operation operation = operation_of(Kind::kScatter, output, options);
  operation.buffer.count = static_cast<std::size_t>(output.numel());
  operation.peer = root;
  return call(operation, output, source, options);
}

Work Group::send(const at::Tensor& tensor, int destination, std::uint32_t tag, const Options& options) const {
  SHOAL_USER_CHECK(destination >= 0 && destination < size() && destination != rank(), "send", "rank {} cannot send to rank {} of {}", rank(),
                   destination, size());
  Operation operation = operation_of(Kind::kSend, tensor, options);
  operation.buffer.count = static_cast<std::size_t>(tensor.numel());
  operation.peer = destination, operation.tag = tag;
  return call(operation, tensor, tensor, options);
}

Work Group::recv(const at::Tensor& tensor, int source, std::uint32_t tag, const Options& options) const {
  SHOAL_USER_CHECK(source >= -1 && source < size() && source != rank(), "recv", "rank {} cannot receive from rank {} of {}", rank(), source, size());
  Operation operation = operation_of(Kind::kReceive, tensor, options);
  operation.buffer.count = static_cast<std::size_t>(tensor.numel());
  operation.peer = source, operation.tag = tag;
  return call(operation, tensor, tensor, options);
}

void Group::barrier(const Options& options) const {
  if (size() == 1) return;
  const Operation operation{.kind = Kind::kBarrier, .timeout = options.timeout};
  engine_->start({operation, {}, {}, true});
}

Group Group::split(int color, int key) const {
  if (size() == 1) return {};
  return Group(engine_->split(color, key));
}

Group Group::on_host() const {
  if (size() == 1) return {};
  return split(engine_->host(), rank());
}

void Group::abort(const Error& cause) const {
  if (engine_) engine_->abort(cause);
}

std::shared_ptr<SharedBuffer> Group::shared_buffer(std::size_t bytes) const {
  return size() == 1 ? make_local_shared_buffer(bytes) : engine_->shared_buffer(bytes);
}

void Group::poll() const {
  if (engine_) engine_->poll();
}

}  // namespace shoal::comm
