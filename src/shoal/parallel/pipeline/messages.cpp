#include "shoal/parallel/pipeline/messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/allocator.h"

namespace shoal::parallel {
namespace {

using schedule::Action;
using schedule::Kind;

/// While a rank computes, so many messages can arrive in memory of their own: one that it takes
/// next, and one behind it.
constexpr std::size_t kAhead = 2;

/// Returns the receive, on the other rank, of what `send` sends from `rank`.
Action receive_of(const Action& send, int rank) {
  if (send.kind == Kind::kSendActivation)
    return {Kind::kReceiveActivation, send.stage + 1, send.micro_batch, rank};
  return {Kind::kReceiveGradient, send.stage - 1, send.micro_batch, rank};
}

}  // namespace

Messages::Messages(comm::Group group, const schedule::Schedule& table, at::ScalarType type)
    : group_(std::move(group)), table_(table), type_(type), sources_(table.ranks()) {
  // MPI's tags are positive ints.
  const std::int64_t tags = std::int64_t{2} * table.stages() * table.micro_batches;
  SHOAL_USER_CHECK(tags <= std::numeric_limits<std::int32_t>::max(), "pipeline",
                   "{} stages x {} micro-batches: a step has tags for {} messages", table.stages(),
                   table.micro_batches, std::numeric_limits<std::int32_t>::max());
  const int own = group_.rank();
  const std::vector<std::size_t> repeatable = schedule::repeatable(table);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    if (rank == own) continue;
    for (std::size_t i = 0; i < table.table[rank].size(); ++i) {
      const Action& action = table.table[rank][i];
      if (!schedule::is_send(action.kind) || action.peer != own) continue;
      if (i < repeatable[rank]) ++sources_[rank].repeatable;
      auto& receives = sources_[rank].receives;
      const Action receive = receive_of(action, rank);
      places_.emplace(tag_of(receive), Place{rank, receives.size()});
      receives.push_back({receive, {}, {}});
    }
  }
  for (std::size_t i = 0; i < table.table[own].size(); ++i)
    if (schedule::is_receive(table.table[own][i].kind)) receives_.push_back(i);
}

void Messages::begin(Shape shape) {
  shape_ = std::move(shape);
  ahead_ = 0;
  for (Source& source : sources_) source.posted = 0;
}

void Messages::post_ahead(std::size_t next) {
  const auto& actions = table_.table[group_.rank()];
  const auto first = std::lower_bound(receives_.begin(), receives_.end(), next);
  const auto wanted =
      std::min(receives_.size(), static_cast<std::size_t>(first - receives_.begin()) + kAhead);
  for (; ahead_ < wanted; ++ahead_) {
    const Place& place = place_of(actions[receives_[ahead_]]);
    Source& source = sources_[place.peer];
    for (; source.posted <= place.index; ++source.posted) post(source.receives[source.posted]);
  }
}

at::Tensor Messages::take(const Action& action) {
  const Place& place = place_of(action);
  Receive& receive = sources_[place.peer].receives[place.index];
  receive.work.order();
  receive.work = {};
  at::Tensor tensor = std::exchange(receive.tensor, {});
  // The input of a stage stays until its backward pass.
  const bool stays = action.kind == Kind::kReceiveActivation;
  comm::retag(tensor, MemoryCategory::kCommunication,
              stays ? MemoryCategory::kActivations : MemoryCategory::kTemporary);
  return tensor;
}

void Messages::send(const Action& action, const at::Tensor& tensor) {
  sends_.push_back(group_.send(tensor, action.peer, tag_of(action), {.async = true}));
}

void Messages::take_back() {
  for (Source& source : sources_) {
    for (std::size_t i = 0; i < source.repeatable; ++i) {
      Receive& receive = source.receives[i];
      const bool taken = i < source.posted && !receive.tensor.defined();
      if (taken) continue;
      post(receive);
      receive.work.order();
      receive.work = {};
      receive.tensor = at::Tensor();
    }
    // Receives beyond these were posted for messages that nobody has sent yet: `post` leaves them
    // as they are.
    source.posted = 0;
  }
  ahead_ = 0;
  finish();
}

void Messages::finish() {
  for (comm::Work& work : sends_) work.order();
  sends_.clear();
}

const Messages::Place& Messages::place_of(const Action& action) const {
  const auto found = places_.find(tag_of(action));
  SHOAL_CHECK(found != places_.end(), "rank {} never sends what {} receives", action.peer,
              schedule::to_string(action));
  return found->second;
}

void Messages::post(Receive& receive) {
  if (receive.tensor.defined()) return;  // before take_back, for the message that comes now
  const ScopedCategory category(MemoryCategory::kCommunication);
  receive.tensor = at::empty(shape_(receive.action), at::TensorOptions(type_));
  receive.work =
      group_.recv(receive.tensor, receive.action.peer, tag_of(receive.action), {.async = true});
}

/// Sender and receiver compute the same number: an activation has the number of the stage that it
/// leaves, a gradient that of the stage whose input it belongs to.
std::uint32_t Messages::tag_of(const Action& action) const {
  const bool activation =
      action.kind == Kind::kSendActivation || action.kind == Kind::kReceiveActivation;
  std::uint32_t stage = static_cast<std::uint32_t>(action.stage);
  if (action.kind == Kind::kReceiveActivation) --stage;
  if (action.kind == Kind::kReceiveGradient) ++stage;
  return (stage * static_cast<std::uint32_t>(table_.micro_batches) +
          static_cast<std::uint32_t>(action.micro_batch)) *
             2 +
         (activation ? 0 : 1);
}

}  // namespace shoal::parallel
