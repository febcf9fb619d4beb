#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/schedule/action.h"

namespace shoal::parallel {

/// The messages of one rank in a step of a pipeline: sends that never wait, and receives that are
/// posted before the rank needs them. Both ends know shape and type of every message, so nothing is
/// sent ahead of it.
///
/// Receives of one peer are posted in the order in which that peer sends: a transport may hold only
/// so many messages that nobody has asked for, and a rank that asked for a later one first would
/// then wait for ever. Not thread-safe.
class Messages {
 public:
  /// Returns the shape of the tensor that a receive brings.
  using Shape = std::function<std::vector<std::int64_t>(const schedule::Action&)>;

  /// `group`: the ranks of the pipeline; `table` must outlive this object. Throws Error(usage) when
  /// the table has more messages than there are tags.
  Messages(comm::Group group, const schedule::Schedule& table, at::ScalarType type);

  /// Begins a step.
  void begin(Shape shape);
  /// Posts the receives that this rank's actions from number `next` on need first: those of the
  /// next two messages, and what their senders send before them.
  void post_ahead(std::size_t next);
  /// Waits, as long as the group's timeout allows, for the message of a receive.
  at::Tensor take(const schedule::Action& receive);
  /// Starts a send. The tensor lives until the message has been taken.
  void send(const schedule::Action& send, const at::Tensor& tensor);
  /// Makes progress without waiting.
  void poll() { group_.poll(); }
  /// Takes back all that this rank has sent and received in this step, which must be part of the
  /// table's repeatable actions; the ranks of the table call it at the same time. The same messages
  /// can then be sent and received again. Waits for those that peers have sent already, and drops
  /// them.
  void take_back();
  /// Ends a step: waits until all messages have been taken.
  void finish();

 private:
  struct Receive {
    schedule::Action action;
    at::Tensor tensor;
    comm::Work work;
  };
  /// The receives from one peer, in the order of its sends.
  struct Source {
    std::vector<Receive> receives;
    std::size_t posted = 0;
    std::size_t repeatable = 0;  ///< so many are sent among the repeatable actions of the peer
  };
  /// The place of a receive among those of its source.
  struct Place {
    int peer;
    std::size_t index;
  };

  const Place& place_of(const schedule::Action& receive) const;
  void post(Receive& receive);
  std::uint32_t tag_of(const schedule::Action& action) const;

  comm::Group group_;
  const schedule::Schedule& table_;
  at::ScalarType type_;
  Shape shape_;
  std::vector<Source> sources_;                      ///< by rank
  std::unordered_map<std::uint32_t, Place> places_;  ///< of the receives, by tag
  std::vector<std::size_t> receives_;  ///< numbers of this rank's actions that receive
  std::size_t ahead_ = 0;              ///< how many of these have been posted
  std::vector<comm::Work> sends_;
};

}  // namespace shoal::parallel
