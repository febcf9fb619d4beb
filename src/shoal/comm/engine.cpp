#include "shoal/comm/engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/hash.h"

namespace shoal::comm {
namespace {

using collective::Buffer;
using collective::Handle;
using collective::Kind;
using collective::Operation;
using Tensors = at::ArrayRef<at::Tensor>;

/// Can the communicator read and write the tensors where they lie?
bool all_in_place(Tensors tensors, bool device) {
  return std::all_of(tensors.begin(), tensors.end(), [device](const at::Tensor& tensor) {
    return tensor.is_contiguous() && (device || tensor.is_cpu());
  });
}

/// The tensor in one piece, on the host unless the communicator carries memory of devices.
at::Tensor reachable(const at::Tensor& tensor, bool device) {
  return device || tensor.is_cpu() ? tensor.contiguous() : tensor.detach().cpu().contiguous();
}

void check_types(const Operation& operation, Tensors outputs, Tensors inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (const at::Tensor* tensor : {&inputs[i], &outputs[i]}) {
      SHOAL_USER_CHECK(tensor->scalar_type() == inputs[0].scalar_type(), name(operation.kind),
                       "all tensors of a call have one type: {} and {}",
                       c10::toString(inputs[0].scalar_type()),
                       c10::toString(tensor->scalar_type()));
    }
  }
}

/// The operation's elements as collective::Buffer counts them.
std::size_t count_of(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                     int ranks) {
  switch (operation.kind) {
    case Kind::kReduceScatter:
    case Kind::kScatter:
      return static_cast<std::size_t>(output.numel());
    case Kind::kAllToAll:
      return operation.send_counts.empty() ? static_cast<std::size_t>(input.numel() / ranks) : 0;
    default:
      return static_cast<std::size_t>(input.numel());
  }
}

/// Returns false for a kind with a root in which this rank only receives.
bool sends(const Operation& operation, int rank) {
  if (!collective::has_root(operation.kind)) return true;
  const bool from_root = operation.kind == Kind::kBroadcast || operation.kind == Kind::kScatter;
  return (operation.peer == rank) == from_root;
}

/// Returns the elements of all buffers of a call; of an all_to_all with counts those that go to
/// others, as if there were one part.
std::size_t elements_of(const Operation& operation, int ranks, int rank) {
  std::size_t count = operation.buffer.count;
  for (const Buffer& buffer : operation.more) count += buffer.count;
  if (operation.kind != Kind::kAllToAll) return count;
  if (operation.send_counts.empty()) return count * static_cast<std::size_t>(ranks - 1);
  std::size_t sum = 0;
  for (int r = 0; r < ranks; ++r)
    if (r != rank) sum += operation.send_counts[r];
  return sum;
}

/// Returns the bytes of those elements, encoded where the operation has a codec.
std::size_t bytes_of(const Operation& operation, std::size_t element, int ranks, int rank) {
  const std::size_t count = elements_of(operation, ranks, rank);
  if (operation.coding.codec == collective::Codec::kNone) return count * element;
  return collective::encoded_bytes(operation.coding, count);
}

/// Returns how often a rank sends each element that it gives to a call, by the algorithms that send
/// least.
double times_sent(Kind kind, int ranks) {
  switch (kind) {
    case Kind::kAllReduce:
      return 2.0 * (ranks - 1) / ranks;
    case Kind::kAllGather:
    case Kind::kReduceScatter:
    case Kind::kScatter:
      return ranks - 1;
    case Kind::kReceive:
    case Kind::kBarrier:
      return 0;
    default:
      return 1;
  }
}

/// Does the operation write its output on this rank?
bool writes_output(const Operation& operation, int rank) {
  switch (operation.kind) {
    case Kind::kSend:
      return false;
    case Kind::kBroadcast:
      return operation.peer != rank;
    case Kind::kReduce:
    case Kind::kGather:
      return operation.peer == rank;
    default:
      return true;
  }
}

/// Adds the memory of tensors to what must live.
void keep_memory(std::vector<c10::Storage>& kept, Tensors tensors) {
  for (const at::Tensor& tensor : tensors) kept.push_back(tensor.storage());
}

}  // namespace

double Engine::Sent::bytes() const {
  double sum = 0;
  for (std::size_t kind = 0; kind < given.size(); ++kind) {
    sum += times_sent(static_cast<Kind>(kind), ranks) *
           static_cast<double>(given[kind].load(std::memory_order_relaxed));
  }
  for (const auto& part : parts) sum += part->bytes();
  return sum;
}

Work Engine::start(Operation& operation, Tensors outputs, Tensors inputs, bool async) {
  check_types(operation, outputs, inputs);
  const bool device =
      operation.memory == collective::MemoryKind::kDevice &&
      operation.coding.codec == collective::Codec::kNone &&
      communicator_->carries_device_memory(operation.kind, operation.type, operation.reduction);
  if (all_in_place(inputs, device) && all_in_place(outputs, device))
    return carry_out(operation, outputs, inputs, async);
  if (!device) operation.memory = collective::MemoryKind::kHost;
  std::vector<at::Tensor> in;
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(reachable(inputs[i], device));
    // In place stays in place.
    out.push_back(inputs[i].is_same(outputs[i]) ? in.back() : reachable(outputs[i], device));
  }
  bool copies_back = false;
  if (writes_output(operation, communicator_->rank())) {
    for (std::size_t i = 0; i < out.size(); ++i)
      copies_back = copies_back || !out[i].is_same(outputs[i]);
  }
  Work work = carry_out(operation, out, in, async && !copies_back);
  if (copies_back) {
    // Autograd refuses to write in place to a leaf that requires a gradient, as an output may.
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < out.size(); ++i)
      if (!out[i].is_same(outputs[i])) outputs[i].copy_(out[i]);
  }
  return work;
}

Work Engine::carry_out(Operation& operation, Tensors outputs, Tensors inputs, bool async) {
  // The bytes of the operation are recorded before the communicator checks it.
  if (operation.coding.codec != collective::Codec::kNone)
    collective::check_coding(operation.coding, name(operation.kind));
  std::vector<Buffer> more;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Buffer buffer{inputs[i].const_data_ptr(), outputs[i].data_ptr(),
                        count_of(operation, outputs[i], inputs[i], communicator_->size())};
    if (i == 0) {
      operation.buffer = buffer;
    } else {
      more.push_back(buffer);
    }
  }
  operation.more = more;

  // The communicator knows the memory by pointers. Until it says that the operation is complete,
  // peers, messages in flight or a library's threads may touch it, so it must live. That
  // holds after a failure too: what is not complete then never will be.
  Handle handle = 0;
  const std::uint64_t before = communicator_->sequence();
  SpanRecorder::TransferId transfer = 0;
  try {
    const ScopedCommunication span(async ? "start" : name(operation.kind),
                                   async ? name(operation.kind) : nullptr);
    if (SpanRecorder* recorder = SpanRecorder::recording()) {
      const std::size_t size = inputs.empty() ? 0 : inputs[0].element_size();
      transfer = record_start(
          name(operation.kind),
          bytes_of(operation, size, communicator_->size(), communicator_->rank()), &operation);
      const auto begin = Clock::now();
      handle = communicator_->start(operation);
      if (!async) {
        communicator_->wait(handle);
        recorder->add_blocked(transfer, Clock::now() - begin);
      }
      if (communicator_->complete(handle)) recorder->end_transfer(transfer);
    } else {
      handle = communicator_->start(operation);
      if (!async) communicator_->wait(handle);
    }
  } catch (const Error&) {
    // A call that is refused, or that finds an earlier failure, has started nothing. Messages have
    // no sequence numbers.
    const bool started = handle != 0 || communicator_->sequence() != before ||
                         collective::point_to_point(operation.kind);
    if (started && !communicator_->idle()) {
      keep_memory(failed_, inputs);
      keep_memory(failed_, outputs);
    }
    throw;
  }
  if (!inputs.empty() && sends(operation, communicator_->rank())) {
    std::atomic<std::size_t>& given = sent_->given[static_cast<std::size_t>(operation.kind)];
    // No other thread writes: without a locked instruction.
    given.store(given.load(std::memory_order_relaxed) +
                    bytes_of(operation, inputs[0].element_size(), communicator_->size(),
                             communicator_->rank()),
                std::memory_order_relaxed);
  }
  release_complete();
  if (!async) return {};
  std::vector<c10::Storage>& kept = in_flight_.emplace_back(InFlight{handle, {}, transfer}).memory;
  kept.reserve(inputs.size() + outputs.size());
  keep_memory(kept, inputs);
  keep_memory(kept, outputs);
  return {communicator_, handle, transfer};
}

void Engine::set_name(std::string name, std::uint64_t id) {
  name_ = std::move(name);
  id_ = id;
}

std::uint64_t Engine::next_part_id(int color) {
  // All ranks split in the same order, so they count alike.
  ++parts_;
  return splitmix64(id_ ^ splitmix64((parts_ << 32) ^ static_cast<std::uint32_t>(color)));
}

SpanRecorder::TransferId Engine::record_start(const char* name, std::size_t bytes,
                                              const Operation* operation) const {
  SpanRecorder* recorder = SpanRecorder::recording();
  if (!recorder) return 0;
  Transfer transfer{.name = name, .group = name_.c_str()};
  transfer.bytes = bytes;
  transfer.group_id = id_;
  transfer.ranks = communicator_->size();
  // The next collective: all ranks have started as many.
  transfer.number = communicator_->sequence() + 1;
  if (operation && collective::point_to_point(operation->kind)) {
    const bool sends = operation->kind == Kind::kSend;
    transfer.tag = operation->tag;
    transfer.source = sends ? communicator_->rank() : operation->peer;
    transfer.destination = sends ? operation->peer : communicator_->rank();
  }
  return recorder->begin_transfer(transfer);
}

std::shared_ptr<collective::Loan> Engine::lend(const at::Tensor& tensor, std::uint32_t tag) {
  collective::SharedMemory* shared = communicator_->shared_memory();
  if (!shared) return nullptr;
  // First, so that slots and memory that came back are free.
  release_complete();
  const void* data = tensor.is_cpu() ? tensor.const_data_ptr() : nullptr;
  const ScopedCommunication span("lend");
  SpanRecorder* recorder = SpanRecorder::recording();
  const SpanRecorder::TransferId transfer = record_start("lend", tensor.nbytes(), nullptr);
  const auto begin = recorder ? Clock::now() : Clock::time_point();
  auto loan = shared->lend(data, tensor.nbytes(), tag);
  if (recorder) {
    recorder->add_blocked(transfer, Clock::now() - begin);
    recorder->end_transfer(transfer);
  }
  if (loan) on_loan_.push_back({loan, tensor.storage()});
  return loan;
}

Engine::~Engine() {
  release_complete();
  // Waiting for the peers here might be waiting for a rank that waits for this one.
  if (!on_loan_.empty()) leave_behind(std::move(on_loan_));
}

void Engine::leave_behind(std::vector<OnLoan> loans) {
  struct LeftBehind {
    std::mutex mutex;
    std::vector<OnLoan> loans;
  };
  static auto* left = new LeftBehind;
  // Freed after the lock: memory may be a part that another engine lent, whose end comes here.
  std::vector<OnLoan> ended;
  const std::lock_guard lock(left->mutex);
  loans.insert(loans.end(), left->loans.begin(), left->loans.end());
  left->loans.clear();
  for (OnLoan& entry : loans)
    (entry.loan->ended() ? ended : left->loans).push_back(std::move(entry));
}

void Engine::barrier() {
  Operation operation{.kind = Kind::kBarrier};
  start(operation, {}, {}, false);
}

void Engine::poll() {
  const ScopedCommunication span("poll");
  communicator_->poll(Duration::zero());
  release_complete();
}

void Engine::release_complete() {
  if (!on_loan_.empty())
    std::erase_if(on_loan_, [](const OnLoan& entry) { return entry.loan->ended(); });
  if (in_flight_.empty()) return;
  // An operation that completed while another was awaited is found here too.
  SpanRecorder* recorder = SpanRecorder::recording();
  std::erase_if(in_flight_, [&](const InFlight& entry) {
    if (!communicator_->complete(entry.handle)) return false;
    if (recorder) recorder->end_transfer(entry.transfer);
    return true;
  });
}

}  // namespace shoal::comm
