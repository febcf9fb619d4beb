// HostCommunicator's progress: what of the operations in flight this rank announces, carries out
// and is done with, and in which order.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "shoal/base/tick_clock.h"
#include "shoal/collective/shared_memory/host_communicator.h"

namespace shoal::collective {
namespace {

/// Does a rank write its result over what others still read? It does not where the result takes the
/// place of its own part, or of nothing.
bool overwrites(const Operation& operation, const Buffer& buffer, std::size_t bytes,
                std::size_t bytes_in, std::size_t bytes_out, int rank) {
  const auto* input = static_cast<const std::byte*>(buffer.input);
  const auto* output = static_cast<const std::byte*>(buffer.output);
  const std::size_t before = static_cast<std::size_t>(rank) * bytes;
  switch (operation.kind) {
    case Kind::kAllGather:
    case Kind::kGather:
      if (input == output + before) return false;
      break;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      if (output == input + before) return false;
      break;
    default:
      return false;
  }
  return std::less<>()(input, output + bytes_out) && std::less<>()(output, input + bytes_in);
}

}  // namespace

// 0 as `until` ends nothing early.
void HostCommunicator::advance(Handle until, Amount amount) {
  for (;;) {
    if (!mailbox_.idle()) mailbox_.advance();
    while (published_ < started_ && may_publish(published_ + 1)) publish(++published_);
    if (completed_ >= mixed_) break;
    conclude();
    if ((until != 0 && complete(until)) || !advance_most_urgent(amount)) return;
  }
  while (executed_ < published_ && execute(executed_ + 1, amount) == Outcome::kDone) ++executed_;
  conclude();
}

// An operation has its turn when all that are before it and not executed are less urgent. Of what
// can be carried out, one piece.
bool HostCommunicator::advance_most_urgent(Amount amount) {
  std::array<std::uint64_t, kSlots> turns;  // by rising priority
  std::size_t count = 0;
  for (std::uint64_t s = executed_ + 1; s <= published_; ++s) {
    if (!pending(s).executed && (count == 0 || pending(s).operation.priority >
                                                   pending(turns[count - 1]).operation.priority))
      turns[count++] = s;
  }
  while (count > 0) {
    const std::uint64_t s = turns[--count];
    const Outcome outcome = execute(s, amount == Amount::kAll ? Amount::kPiece : amount);
    if (outcome == Outcome::kWaits) continue;
    if (outcome == Outcome::kDone) note_executed(s);
    return true;
  }
  return false;
}

void HostCommunicator::note_executed(std::uint64_t sequence) {
  Pending& p = pending(sequence);
  p.executed = true;
  while (executed_ < published_ && pending(executed_ + 1).executed) ++executed_;
  if (sequence <= executed_ || p.way == Way::kInline) return;
  block_.descriptor(rank_, sequence).executed.exchange(sequence);
  wire::wake(block_.lot());
}

void HostCommunicator::conclude() {
  while (settled_ < executed_ && settle(settled_ + 1)) ++settled_;
  if (completed_ < mixed_) return conclude_by_priority();
  // Only the direct way has others touch this rank's buffers.
  while (completed_ < executed_ && (pending(completed_ + 1).way != Way::kDirect ||
                                    (completed_ < settled_ && all_finished(completed_ + 1)))) {
    block_.descriptor(rank_, ++completed_)
        .finished.store(TickClock::now(), std::memory_order_relaxed);
  }
}

// What comes behind one that is as urgent and not complete is not complete either: the last
// operation of a call of several stands for all.
void HostCommunicator::conclude_by_priority() {
  std::optional<int> open;  // the highest priority of those before that are not complete
  for (std::uint64_t s = completed_ + 1; s <= published_; ++s) {
    Pending& p = pending(s);
    if (p.complete) continue;
    const int priority = p.operation.priority;
    const bool executed = s <= executed_ || p.executed;
    p.complete =
        executed && (!open || priority > *open) && (p.way != Way::kDirect || done_by_others(s));
    if (p.complete) {
      block_.descriptor(rank_, s).finished.store(TickClock::now(), std::memory_order_relaxed);
    } else {
      open = std::max(open.value_or(priority), priority);
    }
  }
  while (completed_ < published_ && pending(completed_ + 1).complete) ++completed_;
}

// The first operation that must be complete before a collective that is not complete can be.
std::uint64_t HostCommunicator::awaited_by(std::uint64_t sequence) const {
  const Pending& p = pending(sequence);
  const auto holds_up = [&](const Pending& before) {
    if (before.complete) return false;
    if (sequence > published_ || before.operation.priority >= p.operation.priority) return true;
    return p.way == Way::kStaged && !p.executed && before.way == Way::kStaged && !before.executed;
  };
  for (std::uint64_t s = completed_ + 1; s < sequence; ++s)
    if (holds_up(pending(s))) return s;
  return sequence;
}

// Of a small broadcast or scatter a rank needs the root's announcement only, of a small reduce or
// gather only the root needs any.
HostCommunicator::Awaited HostCommunicator::awaited(const Pending& p) const {
  const Kind kind = p.operation.kind;
  if (!p.small || !has_root(kind)) return Awaited::kAll;
  const bool root = p.operation.peer == rank_;
  const bool gives = kind == Kind::kBroadcast || kind == Kind::kScatter;
  if (gives) return root ? Awaited::kNobody : Awaited::kRoot;
  return root ? Awaited::kAll : Awaited::kNobody;
}

bool HostCommunicator::may_publish(std::uint64_t sequence) {
  const Pending& p = pending(sequence);
  const bool list = p.buffers.size() > 1 || !p.send_counts.empty();
  const std::uint64_t depth = list ? kLists : p.small ? kPayloads : kSlots;
  if (sequence <= freed_ + depth) return true;
  freed_ = ~std::uint64_t{0};
  for (int r = 0; r < size(); ++r)
    freed_ = std::min(freed_, block_.line(r).finished.load(std::memory_order_acquire));
  return sequence <= freed_ + depth;
}

void HostCommunicator::publish(std::uint64_t sequence) {
  const Pending& p = pending(sequence);
  const Operation& o = p.operation;
  Descriptor& d = block_.descriptor(rank_, sequence);
  const std::size_t element = size_of(o.type);
  const std::size_t parts = static_cast<std::size_t>(size());
  const auto bytes_in = [&](std::size_t count) {
    return count * element * (for_each_rank(o.kind) ? parts : 1);
  };
  const auto bytes_out = [&](std::size_t count) {
    return result_bytes(o.kind, count * element, size());
  };
  d.kind = o.kind, d.type = o.type, d.reduction = o.reduction, d.visible = true;
  d.peer = o.peer, d.buffers = static_cast<std::uint32_t>(p.buffers.size()), d.tag = o.tag;
  d.count = total_count(p.buffers), d.scale = o.scale;
  d.input = {}, d.output = {}, d.started = TickClock::now();
  d.finished.store(0, std::memory_order_relaxed);
  const auto place = [&](const Buffer& buffer, Location& input, Location& output) {
    if (buffer.count == 0) return;
    const bool reads = o.kind != Kind::kScatter || o.peer == rank_;
    const bool writes = (o.kind != Kind::kReduce && o.kind != Kind::kGather) || o.peer == rank_;
    if (reads) input = world_->memory().locate(buffer.input, bytes_in(buffer.count));
    if (writes) output = world_->memory().locate(buffer.output, bytes_out(buffer.count));
    d.visible = d.visible && (!reads || input.visible()) && (!writes || output.visible());
    if (reads && writes &&
        overwrites(o, buffer, buffer.count * element, bytes_in(buffer.count),
                   bytes_out(buffer.count), rank_))
      d.visible = false;
  };
  if (!p.send_counts.empty()) {
    d.visible = false;  // parts of different sizes always go through staging
    d.buffers = 0;
    ListEntry* list = block_.list(rank_, sequence);
    for (std::size_t r = 0; r < p.send_counts.size(); ++r) list[r] = {{}, {}, p.send_counts[r]};
  } else if (p.buffers.size() > 1) {
    ListEntry* list = block_.list(rank_, sequence);
    for (std::size_t i = 0; i < p.buffers.size(); ++i) {
      list[i] = {{}, {}, p.buffers[i].count};
      place(p.buffers[i], list[i].input, list[i].output);
    }
  } else if (!p.small) {
    place(p.buffers.front(), d.input, d.output);
  }
  if (p.small) {
    const Call call{o, p.buffers, p.send_counts, p.receive_counts, rank_, size()};
    offer(call, 0, d.count, block_.payload(rank_, sequence, payload_bytes(d)));
  }
  d.sequence.exchange(sequence);
  wire::wake(block_.lot());
}

bool HostCommunicator::all_published(std::uint64_t sequence) const {
  for (int r = 0; r < size(); ++r)
    if (!published(r, sequence)) return false;
  return true;
}

bool HostCommunicator::all_finished(std::uint64_t sequence) const {
  for (int r = 0; r < size(); ++r)
    if (block_.line(r).finished.load(std::memory_order_acquire) < sequence) return false;
  return true;
}

// A small one needs no more of a rank than its announcement; of the others a rank tells by the
// count of those that it has finished, or by this very one where that has overtaken.
bool HostCommunicator::done_by(int r, std::uint64_t sequence) const {
  if (pending(sequence).small) return published(r, sequence);
  return block_.line(r).finished.load(std::memory_order_acquire) >= sequence ||
         descriptor(r, sequence).executed.load(std::memory_order_acquire) >= sequence;
}

bool HostCommunicator::done_by_others(std::uint64_t sequence) const {
  for (int r = 0; r < size(); ++r)
    if (r != rank_ && !done_by(r, sequence)) return false;
  return true;
}

HostCommunicator::Outcome HostCommunicator::execute(std::uint64_t sequence, Amount amount) {
  Pending& p = pending(sequence);
  if (p.way == Way::kUndecided && !decide(sequence, p)) return Outcome::kWaits;
  if (p.way == Way::kInline) {
    run_inline(sequence, p);
    return Outcome::kDone;
  }
  if (amount == Amount::kQuick && !p.quick) return Outcome::kWaits;
  if (p.way == Way::kDirect) return run_direct(sequence, p, amount);
  return behind_a_staged_one(sequence) ? Outcome::kWaits : run_staged(sequence, p, amount);
}

// When the announcements are there that it needs.
bool HostCommunicator::decide(std::uint64_t sequence, Pending& p) {
  switch (p.awaited) {
    case Awaited::kNobody:
      break;
    case Awaited::kRoot:
      if (!published(p.operation.peer, sequence)) return false;
      compare(sequence, p.operation.peer);
      break;
    case Awaited::kAll:
      if (!all_published(sequence)) {
        if (sequence == executed_ + 1) offer_early(sequence, p);
        return false;
      }
      for (int r = 0; r < size(); ++r) compare(sequence, r);
  }
  p.way = choose(sequence, p);
  return true;
}

// Ranks announce in the order of the calls: where all have announced this one, they have those
// before it.
bool HostCommunicator::behind_a_staged_one(std::uint64_t sequence) const {
  for (std::uint64_t s = executed_ + 1; s < sequence; ++s)
    if (!pending(s).executed && choose(s, pending(s)) == Way::kStaged) return true;
  return false;
}

// What was carried out before all had announced it is compared with the rest when they have: their
// descriptors stay until this rank has finished.
bool HostCommunicator::settle(std::uint64_t sequence) {
  if (pending(sequence).awaited != Awaited::kAll) {
    if (!all_published(sequence)) return false;
    for (int r = 0; r < size(); ++r) compare(sequence, r);
  }
  block_.line(rank_).finished.exchange(sequence);
  wire::wake(block_.lot());
  return true;
}

// Every rank compares every other with itself, so that all see a disagreement, whoever is the odd
// one out.
void HostCommunicator::compare(std::uint64_t sequence, int r) const {
  const Descriptor& mine = descriptor(rank_, sequence);
  const Descriptor& theirs = descriptor(r, sequence);
  const bool same =
      theirs.sequence.load(std::memory_order_relaxed) == sequence && theirs.kind == mine.kind &&
      theirs.type == mine.type && theirs.reduction == mine.reduction && theirs.peer == mine.peer &&
      theirs.tag == mine.tag && theirs.scale == mine.scale && theirs.buffers == mine.buffers &&
      (mine.buffers == 0 || theirs.count == mine.count);
  if (!same) {
    throw error_at(
        ErrorKind::kMismatch, sequence,
        fmt::format("ranks call different collectives: rank {} calls {}, rank {} calls {}", rank_,
                    describe_call(rank_, sequence), r, describe_call(r, sequence)))
        .from(r)
        .hint("every rank must make the same calls in the same order");
  }
  if (mine.buffers > 1) {
    const ListEntry* own = block_.list(rank_, sequence);
    for (std::uint32_t i = 0; i < mine.buffers; ++i) {
      if (const auto count = block_.list(r, sequence)[i].count; count != own[i].count) {
        throw error_at(
            ErrorKind::kMismatch, sequence,
            fmt::format("tensor {} of a coalesced call has {} elements on rank {}, {} on rank {}",
                        i, own[i].count, rank_, count, r))
            .from(r);
      }
    }
  }
  const auto& counts = pending(sequence).receive_counts;
  if (counts.empty()) return;
  const std::uint64_t expected = counts[static_cast<std::size_t>(r)];
  if (const auto sent = block_.list(r, sequence)[rank_].count; sent != expected) {
    throw error_at(
        ErrorKind::kMismatch, sequence,
        fmt::format("rank {} sends {} elements where rank {} expects {}", r, sent, rank_, expected))
        .from(r);
  }
}

HostCommunicator::Way HostCommunicator::choose(std::uint64_t sequence, const Pending& p) const {
  if (p.small) return Way::kInline;
  for (int r = 0; r < size(); ++r)
    if (!descriptor(r, sequence).visible) return Way::kStaged;
  return Way::kDirect;
}

void HostCommunicator::run_inline(std::uint64_t sequence, Pending& p) {
  if (p.operation.kind == Kind::kBarrier) return;
  const Operation& o = p.operation;
  const std::size_t count = descriptor(rank_, sequence).count;
  const std::size_t bytes = payload_bytes(descriptor(rank_, sequence));
  if (count == 0) return;
  for (int r = 0; r < size(); ++r) offered_[r] = block_.payload(r, sequence, bytes);
  consume({o, p.buffers, p.send_counts, p.receive_counts, rank_, size()}, 0, count, offered_);
}

}  // namespace shoal::collective
