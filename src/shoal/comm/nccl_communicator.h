#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "shoal/collective/communicator.h"
#include "shoal/comm/device_queue.h"
#include "shoal/comm/group.h"
#include "shoal/comm/nccl_library.h"

namespace shoal::comm {

/// Collectives on the memory of a device by NCCL, beside those on host memory by another
/// communicator of the same ranks. That one also tells ranks of NCCL's meeting place, and of
/// failures: while a rank waits for NCCL it asks the other whether a rank has stopped.
///
/// NCCL runs in a queue of its own, behind what this thread's current queue was given when the
/// operation began; a wait blocks the host until the device is done, with the deadline of any other
/// wait. NCCL chooses algorithms and the order of sums; 16-bit values are rounded at every hop.
/// Ranks' calls are not compared. Messages with tags are left to the other communicator.
class NcclCommunicator final : public collective::Communicator {
 public:
  /// `host` carries host memory, and NCCL works in `queue`. Every rank has a device of its own.
  /// Collective.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> nccl,
                   std::shared_ptr<collective::Communicator> host,
                   std::unique_ptr<DeviceQueue> queue, Duration timeout);
  ~NcclCommunicator() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool supports(collective::Kind kind, ElementType type,
                collective::Reduction reduction) const override {
    return host_->supports(kind, type, reduction);
  }
  bool carries_device_memory(collective::Kind kind, ElementType type,
                             collective::Reduction reduction) const override;
  collective::Handle start(const collective::Operation& operation) override;
  bool test(collective::Handle handle) override;
  bool complete(collective::Handle handle) const override;
  void wait(collective::Handle handle, Deadline deadline) override;
  void wait(collective::Handle handle) override;
  int take_source(collective::Handle handle) override { return host_->take_source(handle); }
  void poll(Duration budget) override { host_->poll(budget); }
  void advance_others() override { host_->advance_others(); }
  void look_for_failure() override { host_->look_for_failure(); }
  bool idle() const override;
  bool has_room() const override { return host_->has_room(); }
  std::uint64_t sequence() const override { return host_->sequence() + started_; }
  std::string report() const override { return host_->report(); }
  std::unique_ptr<collective::Communicator> split(int color, int key) override;
  /// Any thread may call it: the one that waits for NCCL finds the cause at the other communicator.
  void abort(const Error& cause) override { host_->abort(cause); }
  int node() const override { return host_->node(); }
  collective::SharedMemory* shared_memory() override { return host_->shared_memory(); }

 private:
  struct InFlight {
    collective::Kind kind;
    std::unique_ptr<DeviceQueue::Mark> end;
    Clock::time_point give_up;
  };

  void meet(Clock::time_point give_up);
  void call(const collective::Operation& operation);
  // Both return NCCL's result.
  int call_one(const collective::Operation& operation, const collective::Buffer& buffer,
               int reduction);
  int exchange(const collective::Operation& operation, const collective::Buffer& buffer);
  /// Throws for a result that is an error.
  void check(int result, collective::Kind kind);
  /// Looks until `done`, and advances the host's operations and asks for failures meanwhile.
  template <class Done>
  void await(collective::Kind kind, Clock::time_point give_up, Deadline deadline, Done&& done);
  /// Waits until what was called is with the device.
  void settle(collective::Kind kind, Clock::time_point give_up);
  /// Lets the operations on host memory of this rank go on, in all its groups.
  void advance_host();
  /// Throws where a rank has stopped, NCCL has failed or the time is over.
  void check_wait(collective::Kind kind, Clock::time_point give_up, Deadline deadline);
  void drop();  ///< ends what NCCL has under way
  [[noreturn]] void fail(collective::Kind kind, const std::string& what, ErrorKind error);

  std::shared_ptr<const NcclLibrary> nccl_;
  std::shared_ptr<collective::Communicator> host_;
  std::unique_ptr<DeviceQueue> queue_;
  Duration timeout_;
  std::uint64_t started_ = 0;
  std::map<std::uint64_t, InFlight> in_flight_;

  NcclLibrary::Communicator communicator_ = nullptr;
};

/// Returns a group of the ranks of `group` whose operations on memory of `device` go by NCCL. Every
/// rank must have a device of its own. Collective. Throws what NcclLibrary::load throws.
Group with_nccl(const Group& group, at::Device device, Duration timeout);

}  // namespace shoal::comm
