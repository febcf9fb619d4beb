#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/span_recorder.h"
#include "shoal/collective/communicator.h"
#include "shoal/comm/work.h"

namespace shoal::comm {

/// Carries out operations on tensors over a Communicator: gives it contiguous memory, and keeps the
/// tensors alive until every rank has finished with them. Threads: as collective::Communicator.
class Engine {
 public:
  /// `keep_alive` holds something that the communicator and its splits depend on.
  Engine(std::shared_ptr<collective::Communicator> communicator, std::shared_ptr<void> keep_alive)
      : keep_alive_(std::move(keep_alive)), communicator_(std::move(communicator)) {
    sent_->ranks = communicator_->size();
  }
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts `operation`, which is complete but for its buffers, and which it fills in: `outputs[i]`
  /// comes from `inputs[i]`. Unless `async`, and when a result must be copied into a non-contiguous
  /// output, the operation is complete on return and the Work empty.
  Work start(collective::Operation& operation, at::ArrayRef<at::Tensor> outputs,
             at::ArrayRef<at::Tensor> inputs, bool async);
  /// Lends `tensor`, which is contiguous, and keeps it alive until every rank has given it back.
  /// See collective::SharedMemory::lend; null also where the ranks share no memory.
  std::shared_ptr<collective::Loan> lend(const at::Tensor& tensor, std::uint32_t tag);
  /// Blocks until every rank has called it.
  void barrier();
  /// Makes progress without waiting.
  void poll();

  const std::shared_ptr<collective::Communicator>& communicator() const { return communicator_; }
  const std::shared_ptr<void>& keep_alive() const { return keep_alive_; }

  /// Names the group in recordings: `id` is equal on its ranks and differs from other groups'.
  void set_name(std::string name, std::uint64_t id);
  const std::string& group_name() const { return name_; }
  /// Returns the id of the next group that is split from this one by `color`.
  std::uint64_t next_part_id(int color);
  /// Records the start of an operation on `bytes` bytes, which the communicator has begun, where
  /// this thread records; `operation` is null for a loan.
  SpanRecorder::TransferId record_start(const char* name, std::size_t bytes,
                                        const collective::Operation* operation) const;
  double bytes_sent() const { return sent_->bytes(); }  ///< see Group::bytes_sent
  /// From now on this engine counts what `part` sends, too, whose group was split from its own.
  void count(const Engine& part) { sent_->parts.push_back(part.sent_); }

 private:
  // What must live is memory, not tensors: a tensor may hold the autograd graph, whose functions
  // may hold this group, and after a failure neither would ever be freed.
  struct InFlight {
    collective::Handle handle;
    std::vector<c10::Storage> memory;
    SpanRecorder::TransferId transfer = 0;
  };
  struct OnLoan {
    std::shared_ptr<collective::Loan> loan;
    c10::Storage memory;
  };
  /// The bytes and calls that one rank has sent in a group; they outlive its engine in those that
  /// count it. Atomic, because a group may be used by a thread of its own; that thread alone
  /// writes.
  struct Sent {
    /// Bytes that this rank gave to calls of each kind in which it sends.
    std::array<std::atomic<std::size_t>, static_cast<std::size_t>(collective::Kind::kBarrier) + 1>
        given{};
    int ranks = 1;
    std::vector<std::shared_ptr<const Sent>> parts;  ///< groups that were split from this one

    double bytes() const;
  };
  /// `start` for tensors that are contiguous.
  Work carry_out(collective::Operation& operation, at::ArrayRef<at::Tensor> outputs,
                 at::ArrayRef<at::Tensor> inputs, bool async);
  void release_complete();
  /// Keeps what peers still read after the engine is gone, until a later engine leaves something
  /// behind and finds that it has ended; else to the end of the process.
  static void leave_behind(std::vector<OnLoan> loans);

  // The communicator is destroyed before the memory that it may still touch, and before what it
  // depends on.
  std::shared_ptr<void> keep_alive_;
  /// Memory lives until every rank has finished with it, also when nobody keeps the Work.
  std::deque<InFlight> in_flight_;
  std::vector<OnLoan> on_loan_;
  /// Memory of calls that failed: a library's threads may still be at work on them.
  std::vector<c10::Storage> failed_;
  std::shared_ptr<collective::Communicator> communicator_;
  std::shared_ptr<Sent> sent_ = std::make_shared<Sent>();
  std::string name_ = "world";
  std::uint64_t id_ = 1;
  std::uint64_t parts_ = 0;  ///< groups that were split from this one
};

}  // namespace shoal::comm
