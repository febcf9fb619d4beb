#include "shoal/collective/shared_memory/host_mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

/// free -> posted (sender) -> free (receiver, small) | taken (receiver, direct) | accepted -> taken
/// (receiver, staged); taken -> free (sender).
enum State : std::uint32_t { kFree, kPosted, kAccepted, kTaken };

std::size_t payload_bytes(const Operation& operation) {
  return operation.buffer.count * size_of(operation.type);
}

}  // namespace

struct alignas(64) HostMailbox::Letter {
  std::atomic<std::uint32_t> state;
  std::uint32_t tag;
  std::uint64_t number;  ///< counted from 0 within its pair
  std::uint64_t count;
  ElementType type;
  Location where;  ///< of the sender's buffer, when its peers can see it
  alignas(64) std::atomic<std::uint64_t> offered;
  alignas(64) std::atomic<std::uint64_t> consumed;  ///< chunks
  std::array<std::byte, kLetterBytes> small;

  std::size_t bytes() const { return count * size_of(type); }
};

struct alignas(64) HostMailbox::Pair {
  std::atomic<std::uint64_t> posted;
  std::array<Letter, kLetters> letters;
};

std::size_t HostMailbox::bytes(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return n * n * sizeof(Pair) + n * 2 * kHalfBytes;
}

HostMailbox::HostMailbox(std::byte* base, int ranks, int rank, const MemoryMap& memory,
                         wire::ParkingLot& lot)
    : base_(base),
      ranks_(static_cast<std::size_t>(ranks)),
      rank_(rank),
      memory_(memory),
      lot_(lot),
      posted_(ranks_),
      arrived_(ranks_) {}

HostMailbox::Pair& HostMailbox::pair(int from, int to) const {
  return reinterpret_cast<Pair*>(
      base_)[static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to)];
}

std::byte* HostMailbox::half(int from, std::uint64_t chunk) const {
  return base_ + ranks_ * ranks_ * sizeof(Pair) +
         (static_cast<std::size_t>(from) * 2 + chunk % 2) * kHalfBytes;
}

HostMailbox::Ticket HostMailbox::start(const Operation& operation) {
  const bool sends = operation.kind == Kind::kSend;
  SHOAL_USER_CHECK(operation.peer >= (sends ? 0 : -1) && operation.peer < static_cast<int>(ranks_),
                   name(operation.kind), "rank {} is not one of {} ranks", operation.peer, ranks_);
  open_.insert(++last_);
  if (sends) {
    outgoing_.push_back({last_, operation});
  } else {
    incoming_.push_back({last_, operation});
  }
  advance();
  return last_;
}

void HostMailbox::advance() {
  std::vector<bool> blocked(outgoing_.empty() ? 0 : ranks_);
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    if (!advance(*it, blocked)) {
      ++it;
      continue;
    }
    open_.erase(it->ticket);
    it = outgoing_.erase(it);
  }
  // What arrives from here on waits for the next pass: a letter that a receive has just missed is
  // not for a later receive of the same tag.
  for (std::size_t source = 0; source < ranks_ && !incoming_.empty(); ++source)
    arrived_[source] = pair(static_cast<int>(source), rank_).posted.load(std::memory_order_acquire);
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (!advance(*it)) {
      ++it;
      continue;
    }
    if (it->operation.peer < 0) sources_[it->ticket] = it->source;
    open_.erase(it->ticket);
    it = incoming_.erase(it);
  }
}

// Letters to one rank are posted in the order of their sends: once one has found its place
// occupied, the later ones wait too.
bool HostMailbox::advance(Sending& sending, std::vector<bool>& blocked) {
  const Operation& o = sending.operation;
  if (!sending.letter) {
    Pair& to = pair(rank_, o.peer);
    const std::uint64_t number = posted_[o.peer];
    Letter& letter = to.letters[number % kLetters];
    if (blocked[o.peer] || letter.state.load(std::memory_order_acquire) != kFree) {
      blocked[o.peer] = true;
      return false;
    }
    const std::size_t size = payload_bytes(o);
    letter.tag = o.tag, letter.number = number, letter.count = o.buffer.count, letter.type = o.type;
    letter.where = size > kLetterBytes ? memory_.locate(o.buffer.input, size) : Location{};
    letter.offered.store(0, std::memory_order_relaxed),
        letter.consumed.store(0, std::memory_order_relaxed);
    if (size > 0 && size <= kLetterBytes) std::memcpy(letter.small.data(), o.buffer.input, size);
    letter.state.store(kPosted, std::memory_order_release);
    posted_[o.peer] = number + 1;
    to.posted.exchange(number + 1);
    wire::wake(lot_);
    if (size <= kLetterBytes) return true;
    sending.letter = &letter;
  }
  const auto state = sending.letter->state.load(std::memory_order_acquire);
  if (state == kAccepted && (streaming_ == 0 || streaming_ == sending.ticket))
    return stream(sending);
  if (state != kTaken) return false;
  if (streaming_ == sending.ticket) streaming_ = 0;
  sending.letter->state.store(kFree, std::memory_order_release);
  return true;
}

bool HostMailbox::stream(Sending& sending) {
  streaming_ = sending.ticket;
  Letter& letter = *sending.letter;
  const std::size_t size = payload_bytes(sending.operation);
  const std::size_t chunks = (size + kHalfBytes - 1) / kHalfBytes;
  for (std::uint64_t next = letter.offered.load(std::memory_order_relaxed); next < chunks; ++next) {
    if (next >= letter.consumed.load(std::memory_order_acquire) + 2) return false;
    const std::size_t begin = next * kHalfBytes;
    std::memcpy(half(rank_, next),
                static_cast<const std::byte*>(sending.operation.buffer.input) + begin,
                std::min(kHalfBytes, size - begin));
    letter.offered.exchange(next + 1);
    wire::wake(lot_);
  }
  return false;
}

bool HostMailbox::advance(Receiving& receiving) {
  if (!receiving.letter && !claim(receiving)) return false;
  Letter& letter = *receiving.letter;
  const std::size_t size = payload_bytes(receiving.operation);
  const std::size_t chunks = (size + kHalfBytes - 1) / kHalfBytes;
  auto* to = static_cast<std::byte*>(receiving.operation.buffer.output);
  if (size <= kLetterBytes) {
    if (size > 0) std::memcpy(to, letter.small.data(), size);
    letter.state.exchange(kFree);
  } else if (letter.where.visible()) {
    std::memcpy(to, memory_.resolve(letter.where, size), size);
    letter.state.exchange(kTaken);
  } else {
    if (letter.state.load(std::memory_order_relaxed) == kPosted)
      letter.state.exchange(kAccepted), wire::wake(lot_);
    for (std::uint64_t next = letter.consumed.load(std::memory_order_relaxed); next < chunks;
         ++next) {
      if (letter.offered.load(std::memory_order_acquire) <= next) return false;
      const std::size_t begin = next * kHalfBytes;
      std::memcpy(to + begin, half(receiving.source, next), std::min(kHalfBytes, size - begin));
      letter.consumed.exchange(next + 1);
      wire::wake(lot_);
    }
    letter.state.exchange(kTaken);
  }
  wire::wake(lot_);
  return true;
}

/// The first letter with that tag that nobody has claimed, among those that were there when
/// `posted` was read; null: none.
HostMailbox::Letter* HostMailbox::oldest(int source, std::uint64_t posted,
                                         std::uint32_t tag) const {
  Pair& from = pair(source, rank_);
  for (std::uint64_t number = posted > kLetters ? posted - kLetters : 0; number < posted;
       ++number) {
    Letter& letter = from.letters[number % kLetters];
    if (letter.state.load(std::memory_order_acquire) == kPosted && letter.number == number &&
        letter.tag == tag)
      return &letter;
  }
  return nullptr;
}

bool HostMailbox::claim(Receiving& receiving) {
  const Operation& o = receiving.operation;
  const int first = std::max(o.peer, 0);
  const int last = o.peer < 0 ? static_cast<int>(ranks_) - 1 : o.peer;
  for (int source = first; source <= last; ++source) {
    Letter* letter = oldest(source, arrived_[source], o.tag);
    if (!letter) continue;
    receiving.source = source;
    check_fit(receiving, *letter);
    receiving.letter = letter;
    return true;
  }
  return false;
}

int HostMailbox::find_message(std::uint32_t tag) const {
  for (int source = 0; source < static_cast<int>(ranks_); ++source) {
    const bool wanted = std::any_of(incoming_.begin(), incoming_.end(), [&](const Receiving& r) {
      return !r.letter && r.operation.tag == tag &&
             (r.operation.peer < 0 || r.operation.peer == source);
    });
    if (!wanted && oldest(source, pair(source, rank_).posted.load(std::memory_order_acquire), tag))
      return source;
  }
  return -1;
}

void HostMailbox::check_fit(const Receiving& receiving, const Letter& letter) const {
  const Operation& o = receiving.operation;
  if (letter.count == o.buffer.count && letter.type == o.type) return;
  throw Error(
      ErrorKind::kMismatch, "recv",
      fmt::format("rank {} sends {} x {} with tag {}, rank {} receives {} x {}", receiving.source,
                  letter.count, name(letter.type), o.tag, rank_, o.buffer.count, name(o.type)))
      .from(receiving.source)
      .hint("a message is received by a tensor of its own type and size");
}

const Operation* HostMailbox::find(Ticket ticket) const {
  for (const Sending& sending : outgoing_)
    if (sending.ticket == ticket) return &sending.operation;
  for (const Receiving& receiving : incoming_)
    if (receiving.ticket == ticket) return &receiving.operation;
  return nullptr;
}

int HostMailbox::take_source(Ticket ticket) {
  const auto found = sources_.extract(ticket);
  return found.empty() ? -1 : found.mapped();
}

std::string HostMailbox::report() const {
  std::string text;
  const auto add = [&](std::string line) { text += (text.empty() ? "" : "; ") + line; };
  for (const Sending& s : outgoing_) {
    add(fmt::format("rank {} has not taken {} x {} with tag {}", s.operation.peer,
                    s.operation.buffer.count, name(s.operation.type), s.operation.tag));
  }
  for (const Receiving& r : incoming_) {
    add(fmt::format("{} has sent nothing with tag {}",
                    r.operation.peer < 0 ? "no rank" : fmt::format("rank {}", r.operation.peer),
                    r.operation.tag));
  }
  for (int source = 0; source < static_cast<int>(ranks_); ++source) {
    for (const Letter& letter : pair(source, rank_).letters) {
      if (letter.state.load(std::memory_order_acquire) == kPosted) {
        add(fmt::format("rank {} has sent {} x {} with tag {}, which nobody receives", source,
                        letter.count, name(letter.type), letter.tag));
      }
    }
  }
  return text;
}

}  // namespace shoal::collective
