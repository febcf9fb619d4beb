#pragma once

#include <memory>
#include <string>
#include <utility>

#include "shoal/collective/communicator.h"
#include "shoal/comm/group.h"

namespace shoal::collective {

/// Another communicator, but that its ranks know of no memory that they share: what would use it
/// takes the way of ranks on several hosts.
class WithoutSharedMemory final : public Communicator {
 public:
  explicit WithoutSharedMemory(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override {
    return inner_->supports(kind, type, reduction);
  }
  Handle start(const Operation& operation) override { return inner_->start(operation); }
  bool test(Handle handle) override { return inner_->test(handle); }
  bool complete(Handle handle) const override { return inner_->complete(handle); }
  void wait(Handle handle, Deadline deadline) override { inner_->wait(handle, deadline); }
  void wait(Handle handle) override { inner_->wait(handle); }
  bool wait_briefly(Handle handle, Duration longest) override {
    return inner_->wait_briefly(handle, longest);
  }
  int take_source(Handle handle) override { return inner_->take_source(handle); }
  void poll(Duration budget) override { inner_->poll(budget); }
  bool idle() const override { return inner_->idle(); }
  bool has_room() const override { return inner_->has_room(); }
  std::uint64_t sequence() const override { return inner_->sequence(); }
  std::string report() const override { return inner_->report(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    std::shared_ptr<Communicator> part = inner_->split(color, key);
    return part ? std::make_unique<WithoutSharedMemory>(std::move(part)) : nullptr;
  }
  void abort(const Error& cause) override { inner_->abort(cause); }

 private:
  std::shared_ptr<Communicator> inner_;
};

}  // namespace shoal::collective

namespace shoal::comm {

/// Returns a group of the ranks of `group`, which outlives it, that knows of no memory that they
/// share.
inline Group without_shared_memory(const Group& group) {
  auto* inner = const_cast<collective::Communicator*>(group.communicator());
  return Group(std::make_shared<collective::WithoutSharedMemory>(
      std::shared_ptr<collective::Communicator>(std::shared_ptr<void>(), inner)));
}

}  // namespace shoal::comm
