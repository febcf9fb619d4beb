#include "shoal/collective/shared_memory/announcements.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>

#include "shoal/base/tick_clock.h"
#include "shoal/collective/flight/host_flight.h"
#include "shoal/collective/shared_memory/inline_executor.h"

namespace shoal::collective {
namespace {

/// Tells whether a rank writes its result over input that its peers still read. A result that takes
/// the exact place of the rank's own part does no harm, as no peer reads that part.
bool overwrites_input(const Operation& operation, const Buffer& buffer, std::size_t part_bytes,
                      std::size_t bytes_in, std::size_t bytes_out, int rank) {
  const auto* input = static_cast<const std::byte*>(buffer.input);
  const auto* output = static_cast<const std::byte*>(buffer.output);
  const std::size_t own_part = static_cast<std::size_t>(rank) * part_bytes;
  switch (operation.kind) {
    case Kind::kAllGather:
    case Kind::kGather:
      if (input == output + own_part) return false;
      break;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      if (output == input + own_part) return false;
      break;
    default:
      return false;
  }
  return std::less<>()(input, output + bytes_out) && std::less<>()(output, input + bytes_in);
}

}  // namespace

// A rank of a group compares every call with that of each peer: two words say most of it.
bool same_call(const Descriptor& a, const Descriptor& b) {
  constexpr std::size_t kBegin = offsetof(Descriptor, kind);
  static_assert(std::endian::native == std::endian::little);
  static_assert(offsetof(Descriptor, count) == kBegin + 2 * sizeof(std::uint64_t));
  constexpr auto kVisible = std::uint64_t{0xff} << 8 * (offsetof(Descriptor, visible) - kBegin);
  const auto words = [](const Descriptor& d) {
    std::array<std::uint64_t, 2> words;
    std::memcpy(words.data(), reinterpret_cast<const std::byte*>(&d) + kBegin, sizeof words);
    return words;
  };
  const auto mine = words(a);
  const auto theirs = words(b);
  if (((mine[0] ^ theirs[0]) & ~kVisible) != 0 || mine[1] != theirs[1] || a.scale != b.scale)
    return false;
  if (a.codec != Codec::kNone) {
    return a.coding.key == b.coding.key && a.coding.block == b.coding.block && a.count == b.count;
  }
  return a.buffers == 0 || a.count == b.count;
}

// The result is kept: a group with slots to spare reads one number of its own, not one of every
// rank. Peers may finish more meanwhile, which the next call finds.
std::uint64_t Announcements::finished_by_all() {
  freed_ = ~std::uint64_t{0};
  for (int r = 0; r < ranks_; ++r)
    freed_ = std::min(freed_, block_.line(r).finished.load(std::memory_order_acquire));
  return freed_;
}

// Only the root reads in a scatter, and only the root writes in a reduce or gather: the other
// buffers of these kinds need not be visible.
bool Announcements::locate(const Operation& operation, const Buffer& buffer, Location& input,
                           Location& output) const {
  if (buffer.count == 0) return true;
  const Kind kind = operation.kind;
  const bool is_root = operation.peer == rank_;
  const bool reads = kind != Kind::kScatter || is_root;
  const bool writes = (kind != Kind::kReduce && kind != Kind::kGather) || is_root;
  const std::size_t bytes = buffer.count * size_of(operation.type);
  const std::size_t parts = for_each_rank(kind) ? static_cast<std::size_t>(ranks_) : 1;
  const std::size_t bytes_in = bytes * parts;
  const std::size_t bytes_out = result_bytes(kind, bytes, ranks_);
  if (reads) input = world_.memory().locate(buffer.input, bytes_in);
  if (writes) output = world_.memory().locate(buffer.output, bytes_out);
  if ((reads && !input.visible()) || (writes && !output.visible())) return false;
  return !(reads && writes &&
           overwrites_input(operation, buffer, bytes, bytes_in, bytes_out, rank_));
}

void Announcements::publish(std::uint64_t sequence, const PendingOperation& own) {
  const Operation& o = own.operation;
  Descriptor& d = block_.descriptor(rank_, sequence);
  // The slot still holds operation `sequence - kSlots`, with which every rank has finished
  // (invariant 3), so plain stores are enough up to the last line. Reports alone may be reading it:
  // the fence keeps the stores below behind this one, so a report that saw any of them finds the
  // sequence changed afterwards.
  d.sequence.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  d.kind = o.kind;
  d.type = o.type;
  d.reduction = o.reduction;
  d.visible = true;
  d.peer = o.peer;
  d.buffers = static_cast<std::uint16_t>(own.buffers.size());
  d.codec = Codec::kNone;
  d.stochastic = 0;
  d.tag = o.tag;
  d.count = total_count(own.buffers);
  d.scale = o.scale;
  d.input = {};
  d.output = {};
  d.started = TickClock::now();
  // Only reports read it, and they check `sequence` afterwards.
  d.finished.store(0, std::memory_order_relaxed);
  if (!own.send_counts.empty()) {
    // Parts of different sizes are always staged.
    d.visible = false;
    d.buffers = 0;
    ListEntry* list = block_.list(rank_, sequence);
    for (std::size_t r = 0; r < own.send_counts.size(); ++r) list[r] = {{}, {}, own.send_counts[r]};
  } else if (own.buffers.size() > 1) {
    ListEntry* list = block_.list(rank_, sequence);
    for (std::size_t i = 0; i < own.buffers.size(); ++i) {
      list[i] = {{}, {}, own.buffers[i].count};
      const bool usable = locate(o, own.buffers[i], list[i].input, list[i].output);
      d.visible = d.visible && usable;
    }
  } else if (!own.small) {
    d.visible = locate(o, own.buffers.front(), d.input, d.output);
  }
  if (own.coded) {
    // Peers compare what was called, of which this is but one round.
    const Coding& coding = own.coded->coding();
    d.kind = own.called();
    d.type = ElementType::kF32;
    d.count = own.coded->count();
    d.codec = coding.codec;
    d.stochastic = coding.stochastic ? 1 : 0;
    d.coding = {coding.key.value(), coding.block, own.round};
  }
  if (own.small) {
    write_contribution(own.call(rank_, ranks_), 0, d.count,
                       block_.payload(rank_, sequence, inline_payload_bytes(d, ranks_)));
  }
  // From here on peers may read all of it (invariants 2 and 5).
  d.sequence.exchange(sequence);
  wire::wake(block_.lot());
}

void Announcements::note_complete(std::uint64_t sequence) {
  block_.descriptor(rank_, sequence).finished.store(TickClock::now(), std::memory_order_relaxed);
}

// Either mark is stored after the rank's last access to the operation's shared data. The acquire
// makes that access happen before whatever this rank does next with its buffers.
bool Announcements::finished_by(int rank, std::uint64_t sequence,
                                const PendingOperation& own) const {
  if (own.small) return published(rank, sequence);
  return block_.line(rank).finished.load(std::memory_order_acquire) >= sequence ||
         descriptor(rank, sequence).executed.load(std::memory_order_acquire) >= sequence;
}

bool Announcements::finished_by_peers(std::uint64_t sequence, const PendingOperation& own) const {
  for (int r = 0; r < ranks_; ++r)
    if (r != rank_ && !finished_by(r, sequence, own)) return false;
  return true;
}

Error Announcements::mismatch(std::uint64_t sequence, const PendingOperation& own, int peer,
                              std::string what) const {
  Error error(ErrorKind::kMismatch, name(own.called()), std::move(what));
  return error.at(world_.rank(), world_.size()).in(sequence).from(peer);
}

void Announcements::compare(std::uint64_t sequence, const PendingOperation& own, int peer) const {
  // The peer's slot cannot hold a later operation yet, as this rank has not finished with this one.
  // Where it does, the peer is broken, and the comparison of the sequences finds it. The caller has
  // seen the sequence by an acquire load, so relaxed is enough here.
  const Descriptor& mine = descriptor(rank_, sequence);
  const Descriptor& theirs = descriptor(peer, sequence);
  if (theirs.sequence.load(std::memory_order_relaxed) != sequence || !same_call(theirs, mine)) {
    throw mismatch(
        sequence, own, peer,
        fmt::format("ranks call different collectives: rank {} calls {}, rank {} calls {}", rank_,
                    describe_call(rank_, sequence), peer, describe_call(peer, sequence)))
        .hint("every rank must make the same calls in the same order");
  }
  if (mine.buffers > 1) {
    for (std::uint32_t i = 0; i < mine.buffers; ++i) {
      const std::uint64_t expected = block_.list(rank_, sequence)[i].count;
      const std::uint64_t found = block_.list(peer, sequence)[i].count;
      if (found == expected) continue;
      throw mismatch(
          sequence, own, peer,
          fmt::format("tensor {} of a coalesced call has {} elements on rank {}, {} on rank {}", i,
                      expected, rank_, found, peer));
    }
  }
  if (own.receive_counts.empty()) return;
  const std::uint64_t expected = own.receive_counts[static_cast<std::size_t>(peer)];
  const std::uint64_t sent = block_.list(peer, sequence)[rank_].count;
  if (sent != expected) {
    throw mismatch(sequence, own, peer,
                   fmt::format("rank {} sends {} elements where rank {} expects {}", peer, sent,
                               rank_, expected));
  }
}

TransferPath Announcements::path(std::uint64_t sequence, const PendingOperation& own) const {
  if (own.small) return TransferPath::kInline;
  for (int r = 0; r < ranks_; ++r)
    if (!descriptor(r, sequence).visible) return TransferPath::kStaged;
  return TransferPath::kDirect;
}

std::string Announcements::describe_call(int rank, std::uint64_t sequence) const {
  return describe(descriptor(rank, sequence));
}

std::string Announcements::report(std::uint64_t started, std::span<const int> names) const {
  std::string text;
  for (int r = 0; r < ranks_; ++r) {
    // The peers go on while this rank reads, so the counters of one rank may come from two moments.
    // A report needs no more: the ranks that hold up the others do not move.
    const std::uint64_t entered = block_.announced(r);
    const std::uint64_t left = block_.line(r).finished.load();
    const int name = names[static_cast<std::size_t>(r)];
    const char* separator = text.empty() ? "" : "; ";
    if (entered < started) {
      text += fmt::format("{}rank {} never entered #{} (its last was #{}{})", separator, name,
                          entered + 1, entered, entered > 0 ? " " + describe_call(r, entered) : "");
    } else if (left < started) {
      text += fmt::format("{}rank {} is inside #{} {}", separator, name, left + 1,
                          describe_call(r, left + 1));
    }
  }
  return text;
}

}  // namespace shoal::collective
