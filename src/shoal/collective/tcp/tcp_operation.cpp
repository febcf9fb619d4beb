#include "shoal/collective/tcp/tcp_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/collective/fold/fold.h"

namespace shoal::collective {
namespace {

/// Announcements travel on streams of their own: this bit and the operation's sequence number.
constexpr std::uint64_t kAnnouncements = std::uint64_t{1} << 62;
/// Payloads up to this size are copied into the message: cheaper than keeping track of a release.
constexpr std::size_t kCopiedBytes = 1024;
/// Chunks of one rank that an operation keeps while it waits for those of others to be folded with
/// them. Further ones stay with the transport, which bounds them.
constexpr std::size_t kMostHeldChunks = 32;

}  // namespace

TcpOperation::TcpOperation(TcpMembers& members, const std::list<TcpOperation>& in_flight,
                           Handle handle, const Operation& operation, Algorithm algorithm,
                           wire::Stream stream, std::shared_ptr<const std::vector<Step>> steps,
                           std::unique_ptr<CodedExchange> coded)
    : members_(members),
      in_flight_(in_flight),
      handle_(handle),
      operation_(operation),
      call_(TcpCall::of(operation, algorithm)),
      stream_(stream),
      steps_(std::move(steps)),
      element_(coded ? 1 : size_of(operation.type)),
      coded_(std::move(coded)),
      work_(coded_ ? WorkVector()
                   : WorkVector(operation, members.rank, members.size(), !folds_once(algorithm))) {
  // The caller's spans are valid during `start` only.
  operation_.more = {};
  operation_.send_counts = {};
  operation_.receive_counts = {};
  operation_.feedback = nullptr;
  if (!point_to_point(operation.kind) && members.size() > 1) announce();
}

// An operation may end early, after a failure. The transport must not touch the caller's memory
// afterwards: neither what is still being sent nor what is being received in place.
TcpOperation::~TcpOperation() {
  const bool receives = std::any_of(batch_.begin(), batch_.end(),
                                    [](const Arrival& a) { return a.posted && !a.complete; });
  if (receives || !all_released()) members_.peers->release_buffers(stream_);
  for (Arrival& arrival : batch_)
    while (!arrival.chunks.empty()) drop_held(arrival);
}

// At the start each rank sends its call to its successor. Steps compare calls too, but only between
// ranks that exchange data: a broadcast's root, say, receives nothing.
void TcpOperation::announce() {
  announced_ = false;
  wire::Bytes message(TcpCall::kBytes);
  call_.write(message.data());
  send_message(members_.next, {stream_.group, kAnnouncements | stream_.sequence},
               std::move(message));
}

void TcpOperation::send_message(int peer, wire::Stream stream, wire::Bytes head,
                                std::span<const std::byte> body, wire::Released released) {
  const std::size_t bytes = head.size() + body.size();
  const std::size_t chunks =
      (bytes + wire::Assembler::kChunkBytes - 1) / wire::Assembler::kChunkBytes;
  if (!members_.hosts.empty() && members_.hosts[peer] != members_.hosts[members_.rank])
    members_.bytes_between_hosts += bytes + chunks * wire::Assembler::kHeaderBytes;
  const bool sent = members_.peers->send(world_rank(peer), stream, operation_.priority,
                                         std::move(head), body, std::move(released));
  if (!sent) {
    throw error(ErrorKind::kPeerLost, fmt::format("rank {} has left", world_rank(peer)))
        .from(world_rank(peer));
  }
}

bool TcpOperation::check_announcement() {
  if (announced_) return true;
  const auto chunk = members_.peers->take(world_rank(previous()),
                                          {stream_.group, kAnnouncements | stream_.sequence});
  if (!chunk) return false;
  compare(*chunk, previous());
  announced_ = true;
  return true;
}

// Steps run in order; only the receives of one batch may complete in any order. The operation ends
// when the predecessor's call is known to be the same and no memory is being sent any more: until
// then the caller may neither overwrite nor free its buffers.
bool TcpOperation::advance() {
  const bool announced = check_announcement();
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
  if (!announced || !all_released()) return false;
  if (coded_) {
    coded_->finish();
  } else {
    work_.finish(operation_, members_.rank);
  }
  return true;
}

// A payload that is not copied stays the caller's memory: `sent_` remembers the range until the
// transport has released it, and may_write keeps later steps from writing there.
void TcpOperation::send(const Step& step) {
  const std::size_t bytes = bytes_of(step.range);
  const std::byte* data = bytes > 0 ? at(step.range) : nullptr;
  const bool copied = bytes <= kCopiedBytes;
  wire::Bytes head(TcpCall::kBytes + (copied ? bytes : 0));
  call_.of_message(step.range.size()).write(head.data());
  if (copied) {
    if (bytes > 0) std::memcpy(head.data() + TcpCall::kBytes, data, bytes);
    return send_message(step.peer, stream_, std::move(head));
  }
  if (bytes > kInlineBytes) send_message(step.peer, stream_, std::exchange(head, {}));
  auto released = std::make_shared<std::atomic<bool>>(false);
  send_message(step.peer, stream_, std::move(head), {data, bytes}, released);
  sent_.push_back({step.peer, step.range, std::move(released)});
}

// Consecutive copies into different ranges form one batch and may arrive in any order. A reduction
// is a batch of its own, because the next step may send its result. Steps that hold messages form a
// batch with the fold that follows them.
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
                "step {}: kHold steps must end in a kFold", i);
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
    // Messages of one sender arrive in order: only the first of them may take what has arrived.
    const bool waits =
        std::any_of(batch_.begin(), batch_.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const Arrival& a) { return a.peer == arrival.peer && !a.complete; });
    if (!waits) advance_arrival(arrival);
  }
  if (batch_action_ == Action::kFold) {
    const std::size_t before = folded_;
    fold_batch();
    if (folded_ == bytes_of((*steps_)[at_].range)) return true;
    // What was folded has made room for chunks that wait with the transport.
    return folded_ > before && advance_batch();
  }
  return std::all_of(batch_.begin(), batch_.end(), [](const Arrival& a) { return a.complete; });
}

void TcpOperation::advance_arrival(Arrival& arrival) {
  if (!arrival.call_arrived && !receive_call(arrival)) return;
  if (arrival.complete) return;
  if (batch_action_ == Action::kReceiveCopy) return receive_in_place(arrival);
  if (batch_action_ == Action::kReceiveReduce) return fold_chunks(arrival);
  const std::size_t bytes = bytes_of(arrival.range);
  while (arrival.done < bytes && may_hold(arrival)) {
    auto chunk = members_.peers->take(world_rank(arrival.peer), stream_);
    if (!chunk) return;
    if (chunk->total() != bytes) {
      throw error(ErrorKind::kMismatch,
                  fmt::format("a message of {} bytes, not {}", chunk->total(), bytes))
          .from(world_rank(arrival.peer));
    }
    arrival.done += chunk->bytes();
    hold(arrival, std::move(*chunk));
  }
  arrival.complete = arrival.done == bytes;
}

// Takes the first message of an arrival: the call, with a small payload behind it. A message is
// taken only when its payload can be used at once.
bool TcpOperation::receive_call(Arrival& arrival) {
  const std::size_t bytes = bytes_of(arrival.range);
  const std::size_t small = bytes <= kInlineBytes ? bytes : 0;
  if (small > 0 && batch_action_ != Action::kFold && !may_write(arrival.range)) return false;
  if (small > 0 && batch_action_ == Action::kFold && !may_hold(arrival)) return false;
  if (operation_.kind == Kind::kReceive && (arrival.peer = sender()) < 0) return false;
  auto chunk = members_.peers->take(world_rank(arrival.peer), stream_);
  if (!chunk) return false;
  compare(*chunk, arrival.peer, arrival.range.size());
  if (chunk->total() != TcpCall::kBytes + small || chunk->bytes() != chunk->total()) {
    throw error(
        ErrorKind::kMismatch,
        fmt::format("rank {} sends {} bytes where rank {} expects {}", world_rank(arrival.peer),
                    chunk->total() - TcpCall::kBytes, world_rank(members_.rank), small))
        .from(world_rank(arrival.peer));
  }
  arrival.call_arrived = true;
  source_ = arrival.peer;
  if (bytes > kInlineBytes) return true;
  arrival.complete = true;
  arrival.done = bytes;
  if (bytes == 0) return true;
  if (batch_action_ == Action::kReceiveCopy) {
    std::memcpy(at(arrival.range), chunk->data() + TcpCall::kBytes, bytes);
  } else if (batch_action_ == Action::kReceiveReduce) {
    std::vector<std::pair<int, const std::byte*>> others{
        {arrival.peer, chunk->data() + TcpCall::kBytes}};
    fold_into(arrival.range, 0, bytes, others);
  } else {
    hold(arrival, std::move(*chunk));
  }
  return true;
}

// For a receive: a rank whose message has arrived and that no earlier receive may take; -1: none.
int TcpOperation::sender() const {
  const int asked = operation_.peer;
  for (int peer = std::max(asked, 0); peer < (asked < 0 ? members_.size() : asked + 1); ++peer) {
    if (peer != members_.rank && members_.peers->has_arrived(world_rank(peer), stream_) &&
        may_take_from(peer))
      return peer;
  }
  return -1;
}

// A receive from any rank must not take a message that an earlier receive may want, or two receives
// of one tag would complete in another order than they were started.
bool TcpOperation::may_take_from(int peer) const {
  for (const TcpOperation& other : in_flight_) {
    if (&other == this) break;
    if (other.stream_ == stream_ && other.wants_message_from(peer)) return false;
  }
  return true;
}

bool TcpOperation::wants_message_from(int peer) const {
  if (operation_.kind != Kind::kReceive || at_ == steps_->size()) return false;
  const int from =
      batch_.empty() || !batch_.front().call_arrived ? operation_.peer : batch_.front().peer;
  return from < 0 || from == peer;
}

// Copies a large payload without an intermediate buffer: the transport writes to the work vector as
// bytes come. The memory is posted only when no part of it is still being sent.
void TcpOperation::receive_in_place(Arrival& arrival) {
  const std::size_t bytes = bytes_of(arrival.range);
  if (!arrival.posted) {
    if (!may_write(arrival.range)) return;
    arrival.posted = std::make_shared<wire::PostedReceive>(at(arrival.range), bytes);
    members_.peers->post_receive(world_rank(arrival.peer), stream_, arrival.posted);
  }
  if (const auto actual = arrival.posted->actual.load(); actual != 0) {
    throw error(ErrorKind::kMismatch, fmt::format("a message of {} bytes, not {}", actual, bytes))
        .from(world_rank(arrival.peer));
  }
  // Acquire: the bytes were written by whichever thread moved them.
  arrival.complete = arrival.posted->arrived.load(std::memory_order_acquire) == bytes;
}

// Folds a large payload chunk by chunk while later chunks are on their way.
void TcpOperation::fold_chunks(Arrival& arrival) {
  const std::size_t bytes = bytes_of(arrival.range);
  while (arrival.done < bytes) {
    if (!may_write(arrival.range)) return;
    const auto chunk = members_.peers->take(world_rank(arrival.peer), stream_);
    if (!chunk) return;
    if (chunk->total() != bytes) {
      throw error(ErrorKind::kMismatch,
                  fmt::format("a message of {} bytes, not {}", chunk->total(), bytes))
          .from(world_rank(arrival.peer));
    }
    std::vector<std::pair<int, const std::byte*>> others{{arrival.peer, chunk->data()}};
    fold_into(arrival.range, arrival.done, chunk->bytes(), others);
    arrival.done += chunk->bytes();
  }
  arrival.complete = true;
}

// Operations of one communicator share the bound: with many in flight and a rank that is late, each
// would fill its own. Ranks start their collectives in the same order, so the first that folds on
// any rank is one that no rank holds up, and it always has room for a chunk of each sender.
bool TcpOperation::may_hold(const Arrival& arrival) const {
  if (arrival.chunks.size() >= kMostHeldChunks) return false;
  if (members_.held_bytes < members_.most_held_bytes) return true;
  if (!arrival.chunks.empty()) return false;
  const auto first = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [](const TcpOperation& other) { return other.folds(); });
  return first != in_flight_.end() && &*first == this;
}

void TcpOperation::hold(Arrival& arrival, wire::ReceivedChunk chunk) {
  members_.held_bytes += chunk.bytes();
  arrival.chunks.push_back(std::move(chunk));
}

void TcpOperation::drop_held(Arrival& arrival) {
  members_.held_bytes -= arrival.chunks.front().bytes();
  arrival.chunks.pop_front();
}

// Folds the messages of several ranks chunk by chunk, in the order of ranks: all have the same
// length and are divided at the same places, so their next chunks hold the same elements.
void TcpOperation::fold_batch() {
  const Range range = (*steps_)[at_].range;
  const std::size_t bytes = bytes_of(range);
  const std::size_t front = bytes <= kInlineBytes ? TcpCall::kBytes : 0;
  const auto awaits = [](const Arrival& arrival) { return arrival.chunks.empty(); };
  while (folded_ < bytes && std::none_of(batch_.begin(), batch_.end(), awaits) &&
         may_write(range)) {
    std::size_t chunk = bytes - folded_;
    std::vector<std::pair<int, const std::byte*>> others;
    others.reserve(batch_.size() + 1);  // fold_into adds this rank's own
    for (const Arrival& arrival : batch_) {
      others.emplace_back(arrival.peer, arrival.chunks.front().data() + front);
      chunk = arrival.chunks.front().bytes() - front;
    }
    fold_into(range, folded_, chunk, others);
    folded_ += chunk;
    for (Arrival& arrival : batch_) drop_held(arrival);
  }
}

// Folds in the order of ranks, this rank's own contribution among them: every rank that folds the
// same contributions gets the same bits.
void TcpOperation::fold_into(Range range, std::size_t from_byte, std::size_t bytes,
                             std::vector<std::pair<int, const std::byte*>>& others) {
  if (operation_.kind == Kind::kBarrier) return;
  if (coded_) return coded_->add_up();
  std::byte* mine = at(range) + from_byte;
  others.emplace_back(members_.rank, mine);
  std::sort(others.begin(), others.end());
  std::vector<const void*> sources;
  sources.reserve(others.size());
  for (const auto& [rank, data] : others) sources.push_back(data);
  void* target = mine;
  fold(operation_.type, operation_.reduction, sources.data(), static_cast<int>(sources.size()),
       &target, 1, bytes / element_, operation_.scale);
}

// True when no message that is still being sent reads the range.
bool TcpOperation::may_write(Range range) {
  all_released();
  return std::none_of(sent_.begin(), sent_.end(), [&](const Sent& s) {
    return s.range.begin < range.end && range.begin < s.range.end;
  });
}

// Loaded with acquire: the transport's last read of the memory happened before it is overwritten.
bool TcpOperation::all_released() {
  std::erase_if(sent_, [](const Sent& s) { return s.released->load(std::memory_order_acquire); });
  return sent_.empty();
}

int TcpOperation::awaited() const {
  for (const Arrival& arrival : batch_) {
    if (arrival.complete) continue;
    const bool no_sender_yet = operation_.kind == Kind::kReceive && !arrival.call_arrived;
    return no_sender_yet ? operation_.peer : arrival.peer;
  }
  if (!announced_ || sent_.empty()) return at_ < steps_->size() ? (*steps_)[at_].peer : previous();
  return sent_.front().peer;
}

void TcpOperation::compare(const wire::ReceivedChunk& chunk, int from, std::size_t elements) const {
  if (chunk.bytes() < TcpCall::kBytes) {
    throw error(ErrorKind::kMismatch, "a message too short to name its call")
        .from(world_rank(from));
  }
  const TcpCall theirs = TcpCall::read(chunk.data());
  const TcpCall own = call_.of_message(elements);
  if (theirs == own) return;
  if (call_.per_rank_counts != 0 && theirs.of_message(elements) == own) {
    throw error(ErrorKind::kMismatch,
                fmt::format("rank {} sends {} elements to rank {}, which expects {}",
                            world_rank(from), theirs.count, world_rank(members_.rank), elements))
        .from(world_rank(from))
        .hint("the send counts of each rank must be the receive counts of the others");
  }
  throw error(ErrorKind::kMismatch,
              fmt::format("ranks call different operations: rank {} calls {}, rank {} calls {}",
                          world_rank(members_.rank), call_.text(), world_rank(from), theirs.text()))
      .from(world_rank(from))
      .hint("every rank must make the same calls in the same order");
}

std::byte* TcpOperation::at(Range range) const {
  if (coded_) return coded_->at(range.begin);
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
