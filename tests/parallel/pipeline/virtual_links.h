#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/collective/communicator.h"

namespace shoal::parallel {

/// Messages between ranks that are threads, each with a clock of its own. Only what a rank computes
/// and what it waits for moves its clock; how long its thread takes does not count. A message
/// begins to travel when it has been sent and its receive has been posted, and takes `transfer`.
class VirtualLinks {
 public:
  VirtualLinks(int ranks, double transfer) : transfer_(transfer) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.emplace_back();
  }

  /// Called by the rank's own thread, or when it has ended.
  double now(int rank) const { return ranks_[static_cast<std::size_t>(rank)].now; }
  double busy(int rank) const { return ranks_[static_cast<std::size_t>(rank)].busy; }
  void spend(int rank, double seconds) {
    ranks_[static_cast<std::size_t>(rank)].now += seconds;
    ranks_[static_cast<std::size_t>(rank)].busy += seconds;
  }

 private:
  friend class VirtualRank;
  /// What both ends have said of a message.
  struct Message {
    const void* input = nullptr;
    void* output = nullptr;
    int ends = 0;
    double begin = 0;  ///< of its journey, when both ends are there
  };
  struct Rank {
    double now = 0;
    double busy = 0;
    std::condition_variable changed;
  };

  double transfer_;
  std::mutex mutex_;
  std::deque<Rank> ranks_;
  std::map<std::tuple<int, int, std::uint32_t>, Message>
      messages_;  ///< by source, destination, tag
};

/// One rank's end of them. It has sends and receives alone, and each message has a tag of its own.
class VirtualRank final : public collective::Communicator {
 public:
  VirtualRank(std::shared_ptr<VirtualLinks> links, int rank)
      : links_(std::move(links)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_->ranks_.size()); }
  bool supports(collective::Kind kind, ElementType, collective::Reduction) const override {
    return collective::point_to_point(kind);
  }

  collective::Handle start(const collective::Operation& operation) override {
    const bool sends = operation.kind == collective::Kind::kSend;
    const int source = sends ? rank_ : operation.peer;
    const int destination = sends ? operation.peer : rank_;
    const std::lock_guard lock(links_->mutex_);
    auto& message = links_->messages_[{source, destination, operation.tag}];
    if (sends) message.input = operation.buffer.input;
    if (!sends) message.output = operation.buffer.output;
    message.begin = std::max(message.begin, links_->now(rank_));
    if (++message.ends == 2) {
      std::memcpy(message.output, message.input, operation.buffer.count * size_of(operation.type));
      links_->ranks_[static_cast<std::size_t>(operation.peer)].changed.notify_one();
    }
    started_.push_back(&message);
    return started_.size();
  }

  bool complete(collective::Handle handle) const override {
    const std::lock_guard lock(links_->mutex_);
    return started_[handle - 1]->ends == 2;
  }
  bool test(collective::Handle handle) override { return complete(handle); }
  using Communicator::wait;
  void wait(collective::Handle handle, Deadline) override {
    const VirtualLinks::Message& message = *started_[handle - 1];
    VirtualLinks::Rank& own = links_->ranks_[static_cast<std::size_t>(rank_)];
    std::unique_lock lock(links_->mutex_);
    if (!own.changed.wait_for(lock, std::chrono::seconds(60), [&] { return message.ends == 2; }))
      throw Error(ErrorKind::kTimeout, "virtual links", "a message has not come").at(rank_, size());
    own.now = std::max(own.now, message.begin + links_->transfer_);
  }
  void poll(Duration) override {}
  bool idle() const override { return true; }
  std::uint64_t sequence() const override { return 0; }
  std::string report() const override { return {}; }
  std::unique_ptr<Communicator> split(int, int) override { return nullptr; }
  void abort(const Error&) override {}

 private:
  std::shared_ptr<VirtualLinks> links_;
  int rank_;
  std::vector<const VirtualLinks::Message*> started_;  ///< by handle - 1
};

}  // namespace shoal::parallel
