#include "python/src/backend.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

#include "python/src/call.h"
#include "python/src/coalesced_work.h"
#include "python/src/progress.h"
#include "shoal/base/check.h"

namespace shoal::python {
namespace {

using c10d::OpType;
using collective::Kind;

const at::Tensor kNothing;

void check_one(const std::vector<at::Tensor>& tensors, const char* title) {
  SHOAL_USER_CHECK(tensors.size() == 1, title, "one tensor a rank, not {}", tensors.size());
}

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

bool same_size(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& t) { return t.numel() == tensors.front().numel(); });
}

std::vector<std::size_t> counts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(count_of(tensor));
  return counts;
}

/// Elements for each rank from c10d's sizes along the first dimension; empty sizes mean equal
/// parts.
std::vector<std::size_t> counts_along(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                      int ranks, const char* which) {
  const auto n = static_cast<std::size_t>(ranks);
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  const int64_t row = rows > 0 ? tensor.numel() / rows : 0;
  SHOAL_USER_CHECK(
      splits.empty()
          ? rows % ranks == 0
          : splits.size() == n && std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
      "all_to_all", "the {} has {} rows, and its split sizes do not add up to that over {} ranks",
      which, rows, ranks);
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < n; ++r) {
    const int64_t part = splits.empty() ? rows / ranks : splits[r];
    SHOAL_USER_CHECK(part >= 0, "all_to_all", "a split size of {}", part);
    counts.push_back(static_cast<std::size_t>(part * row));
  }
  return counts;
}

}  // namespace

uint64_t ShoalBackend::getSequenceNumberForGroup() { return channel_->sequence; }

std::string ShoalBackend::report() const { return channel_->progress->report(*channel_); }

ShoalBackend::Works ShoalBackend::run(Call&& call) {
  const auto timeout = call.timeout_ > kNoTimeout ? call.timeout_ : timeout_;
  auto work = c10::make_intrusive<HostWork>(channel_, call.type_, call.title_,
                                            std::move(call.kept_tensors_), timeout);
  for (auto& operation : call.operations_) operation.timeout = timeout;
  // While calls are coalesced none of them waits: the work of endCoalescing does, for all.
  channel_->progress->start(work, call.operations_, !call.async_ && !coalescing_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

ShoalBackend::Works ShoalBackend::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  check_one(tensors, "broadcast");
  Call call(OpType::BROADCAST, "shoal:broadcast", options.asyncOp, options.timeout);
  // The root's tensor is only read. Elsewhere the input is not read, but has to lie where the
  // output lies (collective::Buffer).
  const auto tensor = options.rootRank == rank_ ? call.read(tensors[0]) : call.write(tensors[0]);
  call.add(Kind::kBroadcast, tensor, tensor, count_of(tensor)).peer =
      static_cast<int>(options.rootRank);
  call.result(tensors);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  check_one(tensors, "all_reduce");
  if (tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  Call call(OpType::ALLREDUCE, "shoal:all_reduce", options.asyncOp, options.timeout);
  const auto tensor = call.update(tensors[0]);
  call.add(Kind::kAllReduce, tensor, tensor, count_of(tensor));
  call.reduce_by(options.reduceOp);
  call.result(tensors);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Call call(OpType::ALLREDUCE_COALESCED, "shoal:all_reduce_coalesced", options.asyncOp,
            options.timeout);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto tensor = call.update(tensors[i]);
    // An operation has one type. Consecutive tensors of one type share it; every rank passes the
    // same types and so starts the same operations.
    if (i > 0 && tensor.scalar_type() == tensors[i - 1].scalar_type()) {
      call.add_buffer(tensor);
      continue;
    }
    call.add(Kind::kAllReduce, tensor, tensor, count_of(tensor));
    call.reduce_by(options.reduceOp);
  }
  call.result(tensors);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_one(tensors, "reduce");
  Call call(OpType::REDUCE, "shoal:reduce", options.asyncOp, options.timeout);
  // Only the root's tensor changes.
  const auto tensor = options.rootRank == rank_ ? call.update(tensors[0]) : call.read(tensors[0]);
  call.add(Kind::kReduce, tensor, tensor, count_of(tensor)).peer =
      static_cast<int>(options.rootRank);
  call.reduce_by(options.reduceOp);
  call.result(tensors);
  return run(std::move(call));
}

// Parts of different sizes are one broadcast each.
ShoalBackend::Works ShoalBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  check_one(inputs, "all_gather");
  SHOAL_USER_CHECK(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
                   "all_gather", "{} outputs for {} ranks", outputs.empty() ? 0 : outputs[0].size(),
                   size_);
  Call call(OpType::ALLGATHER, "shoal:all_gather", options.asyncOp, options.timeout);
  const auto input = call.read(inputs[0]);
  SHOAL_USER_CHECK(outputs[0][rank_].numel() == input.numel(), "all_gather",
                   "output {} has {} elements, the input {}", rank_, outputs[0][rank_].numel(),
                   input.numel());
  if (same_size(outputs[0])) {
    call.add(Kind::kAllGather, input, call.write_all(outputs[0]), count_of(input));
  } else {
    for (int r = 0; r < size_; ++r) {
      const auto output = call.write(outputs[0][r]);
      // Each rank knows all sizes from its list of outputs, so all ranks start the same operations.
      call.add(Kind::kBroadcast, r == rank_ ? input : output, output, count_of(output)).peer = r;
    }
  }
  call.result(outputs[0]);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ShoalBackend::Works ShoalBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Call call(OpType::_ALLGATHER_BASE, "shoal:all_gather", options.asyncOp, options.timeout);
  SHOAL_USER_CHECK(outputs.size() == inputs.size(), "all_gather", "{} outputs for {} inputs",
                   outputs.size(), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SHOAL_USER_CHECK(outputs[i].numel() == inputs[i].numel() * size_, "all_gather",
                     "output of {} elements for {} ranks with {} each", outputs[i].numel(), size_,
                     inputs[i].numel());
    const auto input = call.read(inputs[i]);
    call.add(Kind::kAllGather, input, call.write(outputs[i]), count_of(input));
  }
  call.result(outputs);
  return run(std::move(call));
}

// outputs[r][i] is what rank r gives as its tensor i.
ShoalBackend::Works ShoalBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  Call call(OpType::ALLGATHER_COALESCED, "shoal:all_gather_coalesced", options.asyncOp,
            options.timeout);
  SHOAL_USER_CHECK(static_cast<int>(outputs.size()) == size_, "all_gather",
                   "{} lists of outputs for {} ranks", outputs.size(), size_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_all;
    for (const Tensors& of_rank : outputs) of_all.push_back(of_rank.at(i));
    SHOAL_USER_CHECK(same_size(of_all) && of_all[0].numel() == inputs[i].numel(), "all_gather",
                     "outputs of tensor {} differ in size from it", i);
    const auto input = call.read(inputs[i]);
    call.add(Kind::kAllGather, input, call.write_all(of_all), count_of(input));
  }
  for (const Tensors& of_rank : outputs) call.result(of_rank);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  check_one(inputs, "gather");
  Call call(OpType::GATHER, "shoal:gather", options.asyncOp, options.timeout);
  const auto input = call.read(inputs[0]);
  at::Tensor output;
  if (options.rootRank == rank_) {
    SHOAL_USER_CHECK(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_, "gather",
                     "the root has one output for each of {} ranks", size_);
    SHOAL_USER_CHECK(same_size(outputs[0]) && outputs[0][0].numel() == input.numel(), "gather",
                     "every output has the {} elements of the input", input.numel());
    output = call.write_all(outputs[0]);
    call.result(outputs[0]);
  }
  call.add(Kind::kGather, input, output, count_of(input)).peer = static_cast<int>(options.rootRank);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                const c10d::GatherOptions& options) {
  Call call(OpType::GATHER, "shoal:gather", options.asyncOp, options.timeout);
  const auto own = call.read(input);
  at::Tensor all;
  if (options.rootRank == rank_) {
    SHOAL_USER_CHECK(output.numel() == input.numel() * size_, "gather",
                     "output of {} elements for {} ranks with {} each", output.numel(), size_,
                     input.numel());
    all = call.write(output);
    Tensors outputs{output};
    call.result(outputs);
  }
  call.add(Kind::kGather, own, all, count_of(own)).peer = static_cast<int>(options.rootRank);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  check_one(outputs, "scatter");
  Call call(OpType::SCATTER, "shoal:scatter", options.asyncOp, options.timeout);
  const auto output = call.write(outputs[0]);
  at::Tensor input;
  if (options.rootRank == rank_) {
    SHOAL_USER_CHECK(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_, "scatter",
                     "the root has one input for each of {} ranks", size_);
    SHOAL_USER_CHECK(same_size(inputs[0]) && inputs[0][0].numel() == output.numel(), "scatter",
                     "every input has the {} elements of the output", output.numel());
    input = call.read_all(inputs[0]);
  }
  call.add(Kind::kScatter, input, output, count_of(output)).peer =
      static_cast<int>(options.rootRank);
  call.result(outputs);
  return run(std::move(call));
}

// Parts of different sizes are one reduction each.
ShoalBackend::Works ShoalBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  check_one(outputs, "reduce_scatter");
  SHOAL_USER_CHECK(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
                   "reduce_scatter", "{} inputs for {} ranks",
                   inputs.empty() ? 0 : inputs[0].size(), size_);
  Call call(OpType::REDUCE_SCATTER, "shoal:reduce_scatter", options.asyncOp, options.timeout);
  const auto output = call.write(outputs[0]);
  SHOAL_USER_CHECK(inputs[0][rank_].numel() == output.numel(), "reduce_scatter",
                   "input {} has {} elements, the output {}", rank_, inputs[0][rank_].numel(),
                   output.numel());
  if (same_size(inputs[0])) {
    call.add(Kind::kReduceScatter, call.read_all(inputs[0]), output, count_of(output));
    call.reduce_by(options.reduceOp);
  } else {
    for (int r = 0; r < size_; ++r) {
      const auto input = call.read(inputs[0][r]);
      // Only the root of each reduction has an output; the input stands in for it elsewhere and is
      // not written.
      call.add(Kind::kReduce, input, r == rank_ ? output : input, count_of(input)).peer = r;
      call.reduce_by(options.reduceOp);
    }
  }
  call.result(outputs);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ShoalBackend::Works ShoalBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  Call call(OpType::_REDUCE_SCATTER_BASE, "shoal:reduce_scatter", options.asyncOp, options.timeout);
  SHOAL_USER_CHECK(outputs.size() == inputs.size(), "reduce_scatter", "{} outputs for {} inputs",
                   outputs.size(), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SHOAL_USER_CHECK(inputs[i].numel() == outputs[i].numel() * size_, "reduce_scatter",
                     "input of {} elements for {} ranks with {} each", inputs[i].numel(), size_,
                     outputs[i].numel());
    const auto output = call.write(outputs[i]);
    call.add(Kind::kReduceScatter, call.read(inputs[i]), output, count_of(output));
    call.reduce_by(options.reduceOp);
  }
  call.result(outputs);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  Call call(OpType::ALLTOALL_BASE, "shoal:all_to_all", options.asyncOp, options.timeout);
  // A rank may receive into memory that a peer has not read yet: input and output share none.
  const auto from = call.read(output.is_alias_of(input) ? input.clone() : input);
  const auto to = call.write(output);
  if (output_splits.empty() && input_splits.empty()) {
    SHOAL_USER_CHECK(input.numel() == output.numel() && input.numel() % size_ == 0, "all_to_all",
                     "{} elements in, {} out, for {} ranks", input.numel(), output.numel(), size_);
    call.add(Kind::kAllToAll, from, to, count_of(input) / static_cast<std::size_t>(size_));
  } else {
    call.exchange(from, to, counts_along(input, input_splits, size_, "input"),
                  counts_along(output, output_splits, size_, "output"));
  }
  call.result({output});
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& options) {
  SHOAL_USER_CHECK(
      static_cast<int>(inputs.size()) == size_ && static_cast<int>(outputs.size()) == size_,
      "all_to_all", "{} inputs and {} outputs for {} ranks", inputs.size(), outputs.size(), size_);
  Call call(OpType::ALLTOALL, "shoal:all_to_all", options.asyncOp, options.timeout);
  // Sizes may differ between ranks in a way that one rank cannot see, so the operation always has
  // counts.
  call.exchange(call.read_all(inputs), call.write_all(outputs), counts_of(inputs),
                counts_of(outputs));
  call.result(outputs);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::send(Tensors& tensors, int destination, int tag) {
  check_one(tensors, "send");
  Call call(OpType::SEND, "shoal:send", true, c10d::kUnsetTimeout);
  const auto tensor = call.read(tensors[0]);
  auto& operation = call.add(Kind::kSend, tensor, kNothing, count_of(tensor));
  operation.peer = destination;
  operation.tag = static_cast<std::uint32_t>(tag);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::recv(Tensors& tensors, int source, int tag) {
  check_one(tensors, "recv");
  Call call(source < 0 ? OpType::RECVANYSOURCE : OpType::RECV, "shoal:recv", true,
            c10d::kUnsetTimeout);
  const auto tensor = call.write(tensors[0]);
  auto& operation = call.add(Kind::kReceive, kNothing, tensor, count_of(tensor));
  operation.peer = source;
  operation.tag = static_cast<std::uint32_t>(tag);
  call.result(tensors);
  return run(std::move(call));
}

ShoalBackend::Works ShoalBackend::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, -1, tag);
}

ShoalBackend::Works ShoalBackend::barrier(const c10d::BarrierOptions& options) {
  Call call(OpType::BARRIER, "shoal:barrier", options.asyncOp, options.timeout);
  call.add(Kind::kBarrier, kNothing, kNothing, 0);
  return run(std::move(call));
}

// A timeout names every rank that has not come, whatever `wait_all_ranks` says.
void ShoalBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  c10d::BarrierOptions blocking = options;
  blocking.asyncOp = false;
  barrier(blocking);
}

void ShoalBackend::startCoalescing() {
  SHOAL_USER_CHECK(!coalescing_, "coalescing", "it has been started already");
  coalescing_ = true;
}

ShoalBackend::Works ShoalBackend::endCoalescing() {
  SHOAL_USER_CHECK(coalescing_, "coalescing", "it has not been started");
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace shoal::python
