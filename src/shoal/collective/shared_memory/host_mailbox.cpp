#include "shoal/collective/shared_memory/host_mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

/// The state of a slot; each transition is made by the side in brackets:
///   inline: free -> posted (sender) -> free (receiver)
///   direct: free -> posted (sender) -> taken (receiver) -> free (sender)
///   staged: free -> posted (sender) -> accepted (receiver) -> taken (receiver) -> free (sender)
enum State : std::uint32_t { kFree, kPosted, kAccepted, kTaken };

std::size_t payload_bytes(const Operation& operation) {
  return operation.buffer.count * size_of(operation.type);
}

}  // namespace

struct alignas(64) HostMailbox::MessageSlot {
  std::atomic<std::uint32_t> state;
  std::uint32_t tag;
  std::uint64_t number;  ///< counted from 0 within its channel
  std::uint64_t count;
  ElementType type;
  Location where;  ///< the sender's buffer, where its peers can address it
  // Counts of chunks, on cache lines of their own: each is written by one side and read by the
  // other.
  alignas(64) std::atomic<std::uint64_t> offered;
  alignas(64) std::atomic<std::uint64_t> consumed;
  std::array<std::byte, kInlineBytes> payload;

  std::size_t bytes() const { return count * size_of(type); }
};

struct alignas(64) HostMailbox::Channel {
  std::atomic<std::uint64_t> posted;
  std::array<MessageSlot, kSlotsPerChannel> slots;
};

std::size_t HostMailbox::bytes(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return n * n * sizeof(Channel) + n * 2 * kChunkBytes;
}

HostMailbox::HostMailbox(std::byte* base, int ranks, int rank, const MemoryMap& memory,
                         wire::ParkingLot& lot, std::vector<int> names)
    : base_(base),
      ranks_(static_cast<std::size_t>(ranks)),
      rank_(rank),
      memory_(memory),
      lot_(lot),
      names_(std::move(names)),
      posted_(ranks_),
      arrived_(ranks_) {}

HostMailbox::Channel& HostMailbox::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(
      base_)[static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to)];
}

std::byte* HostMailbox::staging(int from, std::uint64_t chunk) const {
  return base_ + ranks_ * ranks_ * sizeof(Channel) +
         (static_cast<std::size_t>(from) * 2 + chunk % 2) * kChunkBytes;
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
  std::vector<bool> blocked(outgoing_.empty() ? 0 : ranks_);  // by destination
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    if (!advance(*it, blocked)) {
      ++it;
      continue;
    }
    open_.erase(it->ticket);
    it = outgoing_.erase(it);
  }
  // The counts are read once for the whole pass. A message that arrives after an earlier receive
  // has looked for it must not go to a later receive with the same tag.
  for (std::size_t source = 0; source < ranks_ && !incoming_.empty(); ++source)
    arrived_[source] =
        channel(static_cast<int>(source), rank_).posted.load(std::memory_order_acquire);
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

// Messages to one rank are posted in the order of their sends: once one has found its slot
// occupied, the later ones wait too.
bool HostMailbox::advance(Send& send, std::vector<bool>& blocked) {
  const Operation& o = send.operation;
  if (!send.slot) {
    Channel& to = channel(rank_, o.peer);
    const std::uint64_t number = posted_[o.peer];
    MessageSlot& slot = to.slots[number % kSlotsPerChannel];
    if (blocked[o.peer] || slot.state.load(std::memory_order_acquire) != kFree) {
      blocked[o.peer] = true;
      return false;
    }
    const std::size_t size = payload_bytes(o);
    slot.tag = o.tag;
    slot.number = number;
    slot.count = o.buffer.count;
    slot.type = o.type;
    slot.where = size > kInlineBytes ? memory_.locate(o.buffer.input, size) : Location{};
    slot.offered.store(0, std::memory_order_relaxed);
    slot.consumed.store(0, std::memory_order_relaxed);
    if (size > 0 && size <= kInlineBytes) std::memcpy(slot.payload.data(), o.buffer.input, size);
    // The release publishes the slot. The exchange below comes last because a sleeping receiver
    // waits for it: it is sequentially consistent, as `wake` requires.
    slot.state.store(kPosted, std::memory_order_release);
    posted_[o.peer] = number + 1;
    to.posted.exchange(number + 1);
    wire::wake(lot_);
    if (size <= kInlineBytes) return true;
    send.slot = &slot;
  }
  // The receiver has accepted the message, which is then staged, or has taken all of it. The chunks
  // of this rank serve one message at a time.
  const auto state = send.slot->state.load(std::memory_order_acquire);
  if (state == kAccepted && (streaming_ == 0 || streaming_ == send.ticket)) return stream(send);
  if (state != kTaken) return false;
  if (streaming_ == send.ticket) streaming_ = 0;
  // Only this rank looks for a free slot of its channels, so nobody is woken.
  send.slot->state.store(kFree, std::memory_order_release);
  return true;
}

// Writes the chunks that the receiver has made room for. The send is done when the receiver has
// stored kTaken, which a later `advance` sees.
bool HostMailbox::stream(Send& send) {
  streaming_ = send.ticket;
  MessageSlot& slot = *send.slot;
  const std::size_t size = payload_bytes(send.operation);
  const std::size_t chunks = (size + kChunkBytes - 1) / kChunkBytes;
  for (std::uint64_t next = slot.offered.load(std::memory_order_relaxed); next < chunks; ++next) {
    // The acquire orders the receiver's reads of chunk `next - 2` before this write over it.
    if (next >= slot.consumed.load(std::memory_order_acquire) + 2) return false;
    const std::size_t begin = next * kChunkBytes;
    std::memcpy(staging(rank_, next),
                static_cast<const std::byte*>(send.operation.buffer.input) + begin,
                std::min(kChunkBytes, size - begin));
    slot.offered.exchange(next + 1);
    wire::wake(lot_);
  }
  return false;
}

bool HostMailbox::advance(Receive& receive) {
  if (!receive.slot && !match(receive)) return false;
  MessageSlot& slot = *receive.slot;
  const std::size_t size = payload_bytes(receive.operation);
  const std::size_t chunks = (size + kChunkBytes - 1) / kChunkBytes;
  auto* to = static_cast<std::byte*>(receive.operation.buffer.output);
  if (size <= kInlineBytes) {
    // The exchange follows the copy: once the slot is free, the sender may write the next message
    // over the payload.
    if (size > 0) std::memcpy(to, slot.payload.data(), size);
    slot.state.exchange(kFree);
  } else if (slot.where.visible()) {
    // The sender's buffer stays untouched until it sees kTaken.
    std::memcpy(to, memory_.resolve(slot.where, size), size);
    slot.state.exchange(kTaken);
  } else {
    // Only this side changes the state of a posted message, so relaxed is enough.
    if (slot.state.load(std::memory_order_relaxed) == kPosted) {
      slot.state.exchange(kAccepted);
      wire::wake(lot_);
    }
    for (std::uint64_t next = slot.consumed.load(std::memory_order_relaxed); next < chunks;
         ++next) {
      if (slot.offered.load(std::memory_order_acquire) <= next) return false;
      const std::size_t begin = next * kChunkBytes;
      std::memcpy(to + begin, staging(receive.source, next), std::min(kChunkBytes, size - begin));
      slot.consumed.exchange(next + 1);
      wire::wake(lot_);
    }
    slot.state.exchange(kTaken);
  }
  wire::wake(lot_);
  return true;
}

/// Returns the oldest message with that tag that no receive has matched, among those that were
/// there when `posted` was read; null: none.
HostMailbox::MessageSlot* HostMailbox::find_oldest(int source, std::uint64_t posted,
                                                   std::uint32_t tag) const {
  Channel& from = channel(source, rank_);
  // Older messages have left the ring. The acquire load of the state makes the other fields
  // readable; those of a slot in another state may be changing.
  for (std::uint64_t number = posted > kSlotsPerChannel ? posted - kSlotsPerChannel : 0;
       number < posted; ++number) {
    MessageSlot& slot = from.slots[number % kSlotsPerChannel];
    if (slot.state.load(std::memory_order_acquire) == kPosted && slot.number == number &&
        slot.tag == tag)
      return &slot;
  }
  return nullptr;
}

bool HostMailbox::match(Receive& receive) {
  const Operation& o = receive.operation;
  const int first = std::max(o.peer, 0);
  const int last = o.peer < 0 ? static_cast<int>(ranks_) - 1 : o.peer;
  for (int source = first; source <= last; ++source) {
    MessageSlot* slot = find_oldest(source, arrived_[source], o.tag);
    if (!slot) continue;
    receive.source = source;
    check_match(receive, *slot);
    receive.slot = slot;
    return true;
  }
  return false;
}

int HostMailbox::find_message(std::uint32_t tag) const {
  for (int source = 0; source < static_cast<int>(ranks_); ++source) {
    const bool wanted = std::any_of(incoming_.begin(), incoming_.end(), [&](const Receive& r) {
      return !r.slot && r.operation.tag == tag &&
             (r.operation.peer < 0 || r.operation.peer == source);
    });
    if (!wanted &&
        find_oldest(source, channel(source, rank_).posted.load(std::memory_order_acquire), tag))
      return source;
  }
  return -1;
}

void HostMailbox::check_match(const Receive& receive, const MessageSlot& slot) const {
  const Operation& o = receive.operation;
  if (slot.count == o.buffer.count && slot.type == o.type) return;
  throw Error(ErrorKind::kMismatch, "recv",
              fmt::format("rank {} sends {} x {} with tag {}, rank {} receives {} x {}",
                          name_of(receive.source), slot.count, name(slot.type), o.tag,
                          name_of(rank_), o.buffer.count, name(o.type)))
      .from(name_of(receive.source))
      .hint("a message is received by a tensor of its own type and size");
}

const Operation* HostMailbox::find(Ticket ticket) const {
  for (const Send& send : outgoing_)
    if (send.ticket == ticket) return &send.operation;
  for (const Receive& receive : incoming_)
    if (receive.ticket == ticket) return &receive.operation;
  return nullptr;
}

int HostMailbox::take_source(Ticket ticket) {
  const auto found = sources_.extract(ticket);
  return found.empty() ? -1 : found.mapped();
}

std::string HostMailbox::report() const {
  std::string text;
  const auto add = [&](std::string line) { text += (text.empty() ? "" : "; ") + line; };
  for (const Send& s : outgoing_) {
    add(fmt::format("rank {} has not taken {} x {} with tag {}", name_of(s.operation.peer),
                    s.operation.buffer.count, name(s.operation.type), s.operation.tag));
  }
  for (const Receive& r : incoming_) {
    add(fmt::format(
        "{} has sent nothing with tag {}",
        r.operation.peer < 0 ? "no rank" : fmt::format("rank {}", name_of(r.operation.peer)),
        r.operation.tag));
  }
  for (int source = 0; source < static_cast<int>(ranks_); ++source) {
    for (const MessageSlot& slot : channel(source, rank_).slots) {
      if (slot.state.load(std::memory_order_acquire) == kPosted) {
        add(fmt::format("rank {} has sent {} x {} with tag {}, which nobody receives",
                        name_of(source), slot.count, name(slot.type), slot.tag));
      }
    }
  }
  return text;
}

}  // namespace shoal::collective
