#include "shoal/collective/tcp/tcp_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/collective/fold/fold.h"

namespace shoal::collective {
namespace {

constexpr std::uint64_t kAnnouncements =
    std::uint64_t{1}
    << 62;  // streams on which a rank says what it calls: this bit and the sequence
constexpr std::size_t kCopied = 1024;  // what is sent and smaller is copied

}  // namespace

TcpOperation::TcpOperation(TcpMembers& members, Handle handle, const Operation& operation,
                           Algorithm algorithm, wire::Stream stream,
                           std::shared_ptr<const std::vector<Step>> steps)
    : members_(members),
      handle_(handle),
      operation_(operation),
      call_(TcpCall::of(operation, algorithm)),
      stream_(stream),
      steps_(std::move(steps)),
      element_(size_of(operation.type)),
      work_(operation, members.rank, members.size(), !folds_once(algorithm)) {
  operation_.more = {}, operation_.send_counts = {}, operation_.receive_counts = {};
  if (!point_to_point(operation.kind) && members.size() > 1) announce();
}

TcpOperation::~TcpOperation() {
  const bool lands = std::any_of(batch_.begin(), batch_.end(),
                                 [](const Arrival& a) { return a.landing && !a.complete; });
  if (lands || !all_released()) members_.peers->let_go(stream_);
}

void TcpOperation::announce() {
  announced_ = false;
  wire::Bytes message(TcpCall::kBytes);
  call_.write(message.data());
  deliver((members_.rank + 1) % members_.size(), {stream_.group, kAnnouncements | stream_.sequence},
          std::move(message));
}

void TcpOperation::deliver(int peer, wire::Stream stream, wire::Bytes head,
                           std::span<const std::byte> body, wire::Released released) {
  const std::size_t bytes = head.size() + body.size();
  const std::size_t chunks =
      (bytes + wire::Assembler::kChunkBytes - 1) / wire::Assembler::kChunkBytes;
  if (!members_.hosts.empty() && members_.hosts[peer] != members_.hosts[members_.rank])
    members_.bytes_between_hosts += bytes + chunks * wire::Assembler::kHeaderBytes;
  members_.peers->send(world_rank(peer), stream, operation_.priority, std::move(head), body,
                       std::move(released));
}

bool TcpOperation::hear_announcement() {
  if (announced_) return true;
  const auto piece = members_.peers->take(world_rank(previous()),
                                          {stream_.group, kAnnouncements | stream_.sequence});
  if (!piece) return false;
  compare(*piece, previous());
  return announced_ = true;
}

bool TcpOperation::advance() {
  const bool heard = hear_announcement();
  while (at_ < steps_->size()) {
    const Step& step = (*steps_)[at_];
    if (batch_end_ == 0 && skips(step)) {
      ++at_;
    } else if (batch_end_ == 0 && step.action == Action::kSend) {
      send(step);
      ++at_;
    } else {
      if (batch_end_ == 0) open_batch();
      if (!advance_batch()) return false;
      at_ = std::exchange(batch_end_, 0);
      batch_.clear();
    }
  }
  if (!heard || !all_released()) return false;
  work_.finish(operation_, members_.rank);
  return true;
}

void TcpOperation::send(const Step& step) {
  const std::size_t bytes = bytes_of(step.range);
  const std::byte* data = bytes > 0 ? at(step.range) : nullptr;
  const bool copied = bytes <= kCopied;
  wire::Bytes head(TcpCall::kBytes + (copied ? bytes : 0));
  call_.write(head.data());
  if (copied) {
    if (bytes > 0) std::memcpy(head.data() + TcpCall::kBytes, data, bytes);
    return deliver(step.peer, stream_, std::move(head));
  }
  if (bytes > kTogether) deliver(step.peer, stream_, std::exchange(head, {}));
  auto released = std::make_shared<std::atomic<bool>>(false);
  deliver(step.peer, stream_, std::move(head), {data, bytes}, released);
  sent_.push_back({step.peer, step.range, std::move(released)});
}

// Receives into different ranges wait together, and so do those that are folded at once.
void TcpOperation::open_batch() {
  const auto& steps = *steps_;
  batch_action_ = steps[at_].action;
  folded_ = 0;
  std::size_t i = at_;
  for (; i < steps.size(); ++i) {
    if (skips(steps[i])) continue;
    if (steps[i].action != batch_action_ || batch_action_ == Action::kFold) break;
    batch_.push_back({steps[i].peer, steps[i].range, 0, false, nullptr, {}, false});
    if (batch_action_ == Action::kReceiveReduce) {
      ++i;
      break;
    }
  }
  if (batch_action_ == Action::kHold || batch_action_ == Action::kFold) {
    SHOAL_CHECK(i < steps.size() && steps[i].action == Action::kFold,
                "step {}: what is held is folded next", i);
    batch_action_ = Action::kFold;
    for (const Arrival& arrival : batch_)
      SHOAL_CHECK(arrival.range == steps[i].range, "step {}: ranges to be folded differ", i);
    at_ = i++;
  }
  batch_end_ = i;
}

bool TcpOperation::advance_batch() {
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    Arrival& arrival = batch_[i];
    if (arrival.complete) continue;
    // Of one sender messages come in order.
    const bool waits =
        std::any_of(batch_.begin(), batch_.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const Arrival& a) { return a.peer == arrival.peer && !a.complete; });
    if (!waits) advance_arrival(arrival);
  }
  if (batch_action_ == Action::kFold) {
    fold_batch();
    return folded_ == bytes_of((*steps_)[at_].range);
  }
  return std::all_of(batch_.begin(), batch_.end(), [](const Arrival& a) { return a.complete; });
}

void TcpOperation::advance_arrival(Arrival& arrival) {
  if (!arrival.named && !name_arrival(arrival)) return;
  if (arrival.complete) return;
  if (batch_action_ == Action::kReceiveCopy) return land(arrival);
  if (batch_action_ == Action::kReceiveReduce) return fold_pieces(arrival);
  const std::size_t bytes = bytes_of(arrival.range);
  while (arrival.done < bytes) {
    auto piece = members_.peers->take(world_rank(arrival.peer), stream_);
    if (!piece) return;
    if (piece->total() != bytes) {
      throw error(ErrorKind::kMismatch,
                  fmt::format("a message of {} bytes, not {}", piece->total(), bytes))
          .from(world_rank(arrival.peer));
    }
    arrival.done += piece->bytes();
    arrival.pieces.push_back(std::move(*piece));
  }
  arrival.complete = true;
}

// The first message: the call, with what is small behind it.
bool TcpOperation::name_arrival(Arrival& arrival) {
  const std::size_t bytes = bytes_of(arrival.range);
  const std::size_t small = bytes <= kTogether ? bytes : 0;
  if (small > 0 && batch_action_ != Action::kFold && !may_write(arrival.range)) return false;
  if (operation_.kind == Kind::kReceive && (arrival.peer = sender()) < 0) return false;
  auto piece = members_.peers->take(world_rank(arrival.peer), stream_);
  if (!piece) return false;
  compare(*piece, arrival.peer);
  if (piece->total() != TcpCall::kBytes + small || piece->bytes() != piece->total()) {
    throw error(
        ErrorKind::kMismatch,
        fmt::format("rank {} sends {} bytes where rank {} expects {}", world_rank(arrival.peer),
                    piece->total() - TcpCall::kBytes, world_rank(members_.rank), small))
        .from(world_rank(arrival.peer));
  }
  arrival.named = true;
  heard_ = arrival.peer;
  if (bytes > kTogether) return true;
  arrival.complete = true;
  arrival.done = bytes;
  if (bytes == 0) return true;
  if (batch_action_ == Action::kReceiveCopy) {
    std::memcpy(at(arrival.range), piece->data() + TcpCall::kBytes, bytes);
  } else if (batch_action_ == Action::kReceiveReduce) {
    std::vector<std::pair<int, const std::byte*>> others{
        {arrival.peer, piece->data() + TcpCall::kBytes}};
    fold_into(arrival.range, 0, bytes, others);
  } else {
    arrival.pieces.push_back(std::move(*piece));
  }
  return true;
}

// Of a receive: a rank of which there is a message that no earlier receive may take; -1: none.
int TcpOperation::sender() const {
  const int asked = operation_.peer;
  for (int peer = std::max(asked, 0); peer < (asked < 0 ? members_.size() : asked + 1); ++peer) {
    if (peer != members_.rank && members_.peers->has_arrived(world_rank(peer), stream_) &&
        may_take_from(peer))
      return peer;
  }
  return -1;
}

bool TcpOperation::may_take_from(int peer) const {
  for (const TcpOperation& other : *line_) {
    if (&other == this) break;
    if (other.stream_ == stream_ && other.looks_for(peer)) return false;
  }
  return true;
}

bool TcpOperation::looks_for(int peer) const {
  if (operation_.kind != Kind::kReceive || at_ == steps_->size()) return false;
  const int from = batch_.empty() || !batch_.front().named ? operation_.peer : batch_.front().peer;
  return from < 0 || from == peer;
}

void TcpOperation::land(Arrival& arrival) {
  const std::size_t bytes = bytes_of(arrival.range);
  if (!arrival.landing) {
    if (!may_write(arrival.range)) return;
    arrival.landing = std::make_shared<wire::Landing>(at(arrival.range), bytes);
    members_.peers->land(world_rank(arrival.peer), stream_, arrival.landing);
  }
  if (const auto actual = arrival.landing->actual.load(); actual != 0) {
    throw error(ErrorKind::kMismatch, fmt::format("a message of {} bytes, not {}", actual, bytes))
        .from(world_rank(arrival.peer));
  }
  arrival.complete = arrival.landing->arrived.load(std::memory_order_acquire) == bytes;
}

void TcpOperation::fold_pieces(Arrival& arrival) {
  const std::size_t bytes = bytes_of(arrival.range);
  while (arrival.done < bytes) {
    if (!may_write(arrival.range)) return;
    const auto piece = members_.peers->take(world_rank(arrival.peer), stream_);
    if (!piece) return;
    if (piece->total() != bytes) {
      throw error(ErrorKind::kMismatch,
                  fmt::format("a message of {} bytes, not {}", piece->total(), bytes))
          .from(world_rank(arrival.peer));
    }
    std::vector<std::pair<int, const std::byte*>> others{{arrival.peer, piece->data()}};
    fold_into(arrival.range, arrival.done, piece->bytes(), others);
    arrival.done += piece->bytes();
  }
  arrival.complete = true;
}

// All messages have the same length and are cut at the same places, so their next pieces belong
// together.
void TcpOperation::fold_batch() {
  const Range range = (*steps_)[at_].range;
  const std::size_t bytes = bytes_of(range);
  const std::size_t front = bytes <= kTogether ? TcpCall::kBytes : 0;
  while (folded_ < bytes && may_write(range)) {
    std::size_t chunk = bytes - folded_;
    std::vector<std::pair<int, const std::byte*>> others;
    for (const Arrival& arrival : batch_) {
      if (arrival.pieces.empty()) return;
      others.emplace_back(arrival.peer, arrival.pieces.front().data() + front);
      chunk = arrival.pieces.front().bytes() - front;
    }
    fold_into(range, folded_, chunk, others);
    folded_ += chunk;
    for (Arrival& arrival : batch_) arrival.pieces.pop_front();
  }
}

// In the order of ranks, this one's own among them.
void TcpOperation::fold_into(Range range, std::size_t from_byte, std::size_t bytes,
                             std::vector<std::pair<int, const std::byte*>>& others) {
  if (operation_.kind == Kind::kBarrier) return;
  std::byte* mine = at(range) + from_byte;
  others.emplace_back(members_.rank, mine);
  std::sort(others.begin(), others.end());
  std::vector<const void*> sources;
  for (const auto& [rank, data] : others) sources.push_back(data);
  void* target = mine;
  fold(operation_.type, operation_.reduction, sources.data(), static_cast<int>(sources.size()),
       &target, 1, bytes / element_, operation_.scale);
}

bool TcpOperation::may_write(Range range) {
  all_released();
  return std::none_of(sent_.begin(), sent_.end(), [&](const Sent& s) {
    return s.range.begin < range.end && range.begin < s.range.end;
  });
}

bool TcpOperation::all_released() {
  std::erase_if(sent_, [](const Sent& s) { return s.released->load(std::memory_order_acquire); });
  return sent_.empty();
}

int TcpOperation::awaited() const {
  for (const Arrival& arrival : batch_) {
    if (!arrival.complete)
      return operation_.kind == Kind::kReceive && !arrival.named ? operation_.peer : arrival.peer;
  }
  if (!announced_ || sent_.empty()) return at_ < steps_->size() ? (*steps_)[at_].peer : previous();
  return sent_.front().peer;
}

void TcpOperation::compare(const wire::Piece& piece, int from) const {
  if (piece.bytes() < TcpCall::kBytes) {
    throw error(ErrorKind::kMismatch, "a message too short to name its call")
        .from(world_rank(from));
  }
  const TcpCall theirs = TcpCall::read(piece.data());
  if (theirs == call_) return;
  throw error(ErrorKind::kMismatch,
              fmt::format("ranks call different operations: rank {} calls {}, rank {} calls {}",
                          world_rank(members_.rank), call_.text(), world_rank(from), theirs.text()))
      .from(world_rank(from))
      .hint("every rank must make the same calls in the same order");
}

std::byte* TcpOperation::at(Range range) const {
  if (std::byte* data = work_.at(range)) return data;
  throw error(ErrorKind::kInternal, fmt::format("a step touches [{}, {}), which has no memory here",
                                                range.begin, range.end));
}

Error TcpOperation::error(ErrorKind kind, std::string what) const {
  return Error(kind, name(operation_.kind), std::move(what))
      .at(members_.peers->rank(), members_.peers->size())
      .in(handle_);
}

}  // namespace shoal::collective
