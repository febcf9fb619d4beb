#include "shoal/collective/shared_memory/host_world.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "shoal/base/check.h"
#include "shoal/collective/shared_memory/host_block.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kPage = 4096;
/// The segment is sparse: only what is used has pages.
constexpr std::size_t kControlBytes = std::size_t{8} << 30;
constexpr std::size_t kMostRanks = HostWorld::kMostRanks;
/// The time between two looks for peers that have ended: each is a system call.
constexpr Duration kLookEvery = std::chrono::milliseconds(2);
/// The time in which the error of a rank that has ended may still arrive.
constexpr Duration kGrace = std::chrono::milliseconds(300);
constexpr const char* kEndedHint =
    "it was killed, perhaps for memory (dmesg says so), or exited early: see what it printed last";

/// A rank that has begun to write the record and is still there after so long is stopped.
constexpr Duration kLongestRecording = std::chrono::seconds(1);
/// A rank that writes to memory of its peers for so long is stopped.
constexpr Duration kLongestTouch = std::chrono::seconds(5);

/// The state of the record of the first failure (invariant 1). Above it stands the writing rank.
enum : std::uint32_t { kNone, kWriting, kRecorded, kStateBits = 8 };

std::uint32_t writing_by(int rank) {
  return kWriting | static_cast<std::uint32_t>(rank) << kStateBits;
}
bool is_being_written(std::uint32_t state) { return (state & 0xff) == kWriting; }
int writer_of(std::uint32_t state) { return static_cast<int>(state >> kStateBits); }

template <std::size_t N>
void put(std::array<char, N>& to, const std::string& text) {
  const std::size_t n = std::min(text.size(), N - 1);
  std::memcpy(to.data(), text.data(), n);
  to[n] = 0;
}

template <std::size_t N>
std::string get(const std::array<char, N>& from) {
  return std::string(from.data(), strnlen(from.data(), N));
}

}  // namespace

/// Lies at the start of the control segment, whose first 64 bytes are the token of the rendezvous.
struct HostWorld::Header {
  std::array<std::byte, 64> token;
  std::atomic<std::uint64_t> taken;  ///< bytes handed out after the first block
  std::atomic<std::uint32_t> state;
  std::uint32_t kind;
  std::int32_t rank;
  std::int32_t peer;
  std::uint64_t sequence;
  std::array<char, 64> operation;
  std::array<char, 1024> message;
  std::array<char, 512> hint;
  std::array<std::atomic<std::uint8_t>, kMostRanks> left;
  /// By rank: one more than the rank for which it waits, 0 for none. For reports alone.
  std::array<std::atomic<std::uint16_t>, kMostRanks> awaited;
  /// By rank: 1 while it writes to memory of its peers. A line each, as it changes often.
  struct alignas(64) Mark {
    std::atomic<std::uint32_t> touches;
  };
  std::array<Mark, kMostRanks> marks;
};

HostWorld::HostWorld(int rank, wire::LocalRendezvousResult rendezvous,
                     const wire::SharedSegment* own_arena)
    : rank_(rank),
      size_(static_cast<int>(rendezvous.arenas.size())),
      rendezvous_(std::move(rendezvous)),
      control_(rendezvous_.control.data()),
      memory_(MemoryMap::of_processes(
          [&] {
            std::vector<MemoryMap::Region> regions;
            for (int r = 0; r < size_; ++r) {
              const wire::SharedSegment* segment = r == rank ? own_arena : &rendezvous_.arenas[r];
              regions.push_back(segment && *segment
                                    ? MemoryMap::Region{segment->data(), segment->bytes()}
                                    : MemoryMap::Region{});
            }
            return regions;
          }(),
          rank)) {
  check_size(size_);
  SHOAL_CHECK(rendezvous_.control.bytes() >= control_bytes(), "a control segment of {} bytes",
              rendezvous_.control.bytes());
}

HostWorld::HostWorld(int rank, int size, std::shared_ptr<wire::SharedSegment> control)
    : rank_(rank),
      size_(size),
      own_control_(std::move(control)),
      control_(own_control_->data()),
      memory_(MemoryMap::one_address_space()) {
  check_size(size_);
}

void HostWorld::check_size(int size) {
  SHOAL_USER_CHECK(size <= static_cast<int>(kMostRanks), "group",
                   "{} ranks share the memory of one host, and {} can", size, kMostRanks);
}

HostWorld::Header& HostWorld::header() const { return *reinterpret_cast<Header*>(control_); }
std::size_t HostWorld::first_block() {
  constexpr std::size_t kHeader = 20 * kPage;
  static_assert(sizeof(Header) <= kHeader);
  return kHeader;
}
std::size_t HostWorld::control_bytes() { return kControlBytes; }

std::size_t HostWorld::take_control(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  const std::size_t first_end =
      (first_block() + HostBlock::bytes(size_) + kPage - 1) / kPage * kPage;
  // Ranks of several groups may take memory at the same time.
  const std::size_t offset = first_end + header().taken.fetch_add(rounded);
  if (offset + rounded > kControlBytes) {
    throw Error(ErrorKind::kResource, "group", "the control memory of this host's ranks is used up")
        .hint("make fewer groups, and keep those you make");
  }
  return offset;
}

std::byte* HostWorld::at(std::size_t control_offset, std::size_t bytes) const {
  if (control_offset > kControlBytes || bytes > kControlBytes - control_offset) {
    throw Error(
        ErrorKind::kData, "group",
        fmt::format("a peer named control memory at {}, which does not exist", control_offset));
  }
  return control_ + control_offset;
}

bool HostWorld::claim_record() {
  std::uint32_t expected = kNone;
  return header().state.compare_exchange_strong(expected, writing_by(rank_));
}

void HostWorld::abort(const Error& cause) {
  if (claim_record()) return write_record(cause);
  // The caller looks for the first cause next and must find it, so wait until it is written. Its
  // rank may have been killed while it wrote, so do not wait for long.
  const auto& state = header().state;
  for (const Deadline end = Deadline::in(kGrace);
       is_being_written(state.load(std::memory_order_acquire)) && !end.passed();)
    std::this_thread::yield();
}

// This rank has won, and nobody reads the record before the last line.
void HostWorld::write_record(const Error& cause) {
  Header& h = header();
  h.kind = static_cast<std::uint32_t>(cause.kind());
  h.rank = rank_;
  h.peer = cause.peer();
  h.sequence = cause.sequence();
  put(h.operation, cause.operation());
  put(h.message, cause.message());
  put(h.hint, cause.hint());
  // This releases the record (invariant 1). Nobody is woken: a rank that sleeps looks for a failure
  // every few milliseconds (wire::wait_for).
  h.state.store(kRecorded);
}

void HostWorld::throw_cause() const {
  const Header& h = header();
  // The kind is clamped: a broken peer may have written any number.
  const auto kind = static_cast<ErrorKind>(
      std::min<std::uint32_t>(h.kind, static_cast<std::uint32_t>(ErrorKind::kAborted)));
  const std::string message = get(h.message);
  const bool own = h.rank == rank_;
  // The peer to blame: as this rank recorded it, or the peer that the other rank blames, or the
  // other rank itself.
  int peer = h.peer;
  if (!own && peer < 0) peer = h.rank;
  Error error(kind, get(h.operation),
              own ? message : fmt::format("rank {} failed: {}", h.rank, message));
  error.at(rank_, size_).from(peer).in(h.sequence).hint(get(h.hint));
  throw error;
}

// A process that ends makes its pidfd readable. Ranks that have left in good order are not asked.
int HostWorld::ended_peer() const {
  if (rendezvous_.processes.empty()) return -1;
  std::vector<pollfd> wait;
  for (std::size_t r = 0; r < rendezvous_.processes.size(); ++r) {
    wait.push_back({.fd = has_left(static_cast<int>(r)) ? -1 : rendezvous_.processes[r].get(),
                    .events = POLLIN,
                    .revents = 0});
  }
  if (poll(wait.data(), wait.size(), 0) <= 0) return -1;
  const auto ended = std::find_if(wait.begin(), wait.end(),
                                  [](const pollfd& p) { return p.revents != 0 && p.fd >= 0; });
  return ended == wait.end() ? -1 : static_cast<int>(ended - wait.begin());
}

bool HostWorld::process_ended(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= rendezvous_.processes.size()) return false;
  pollfd wait{.fd = rendezvous_.processes[index].get(), .events = POLLIN, .revents = 0};
  return poll(&wait, 1, 0) > 0 && wait.revents != 0;
}

bool HostWorld::ended() const {
  return header().state.load(std::memory_order_acquire) == kRecorded;
}

int HostWorld::cause_rank() const { return ended() ? header().rank : -1; }

void HostWorld::leave() {
  // Stored last, so that it releases everything that this rank has done (invariant 3).
  header().left[rank_].store(1);
}

bool HostWorld::has_left(int rank) const { return header().left[rank].load() != 0; }

void HostWorld::set_awaited(int rank) {
  header().awaited[rank_].store(static_cast<std::uint16_t>(rank + 1), std::memory_order_relaxed);
}

int HostWorld::awaited(int rank) const {
  // A broken peer may have written any number.
  const int found = header().awaited[rank].load(std::memory_order_relaxed) - 1;
  return found < size_ ? found : -1;
}

// The others go on meanwhile, but those that hold this rank up do not move.
std::string HostWorld::chain_of_waits(int& blamed) const {
  std::string text;
  std::vector<bool> seen(static_cast<std::size_t>(size_));
  // Each entry is read once: its rank may go on meanwhile.
  for (int rank = rank_, next = 0; !seen[rank]; rank = next) {
    seen[rank] = true;
    next = awaited(rank);
    if (rank == rank_ && next < 0) return text;
    blamed = next < 0 ? rank : next;
    if (rank == rank_) {
      text = fmt::format("rank {} waits for rank {}", rank, next);
    } else if (next >= 0) {
      text += fmt::format(", rank {} for rank {}", rank, next);
    } else {
      text += fmt::format(", and rank {} for nobody", rank);
      break;
    }
  }
  return text;
}

void HostWorld::check() {
  if (ended()) throw_cause();
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  check_writer(now);
  const int ended = ended_peer();
  if (ended < 0) return;
  if (suspect_ != ended) {
    suspect_ = ended;
    suspected_at_ = now;
  }
  // The peer may have done what the caller waits for before it ended, and its error may still be on
  // its way.
  if (now - suspected_at_ < kGrace) return;
  abort(Error(ErrorKind::kPeerLost, "group",
              fmt::format("rank {} ended and left no error report while rank {} waited for it",
                          ended, rank_))
            .from(ended)
            .hint(kEndedHint));
  // Where another rank records a cause meanwhile, the next look finds it, or finds that rank ended.
  if (this->ended()) throw_cause();
}

// A rank that is killed while it writes the record leaves it unfinished for ever: another one,
// which wins the change of the state, writes it anew.
void HostWorld::check_writer(Clock::time_point now) {
  std::uint32_t state = header().state.load(std::memory_order_acquire);
  if (!is_being_written(state)) return writing_since_.reset();
  if (!writing_since_) writing_since_ = now;
  if (now - *writing_since_ < kGrace) return;
  const int writer = writer_of(state);
  if (process_ended(writer)) {
    if (!header().state.compare_exchange_strong(state, writing_by(rank_))) return;
    write_record(Error(ErrorKind::kPeerLost, "group",
                       fmt::format("rank {} ended while it reported a failure", writer))
                     .from(writer)
                     .hint(kEndedHint));
    throw_cause();
  }
  if (now - *writing_since_ < kLongestRecording) return;
  throw Error(
      ErrorKind::kPeerLost, "group",
      fmt::format("rank {} began to report a failure and does not go on: it is stopped", writer))
      .at(rank_, size_)
      .from(writer);
}

// The mark is set before the state is read, and `abort` changes the state before a rank reads the
// marks; all of that is sequentially consistent. So either this rank sees that it must not write,
// or the others see that it does.
HostWorld::Touch::Touch(const HostWorld& world)
    : mark_(world.header().marks[static_cast<std::size_t>(world.rank_)].touches) {
  mark_.store(1);
  allowed_ = world.header().state.load() == kNone;
}

HostWorld::Touch::~Touch() { mark_.store(0, std::memory_order_release); }

void HostWorld::await_untouched() const {
  const Deadline end = Deadline::in(kLongestTouch);
  for (int r = 0; r < size_; ++r) {
    const auto& mark = header().marks[static_cast<std::size_t>(r)].touches;
    while (r != rank_ && mark.load() != 0 && !process_ended(r) && !end.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace shoal::collective
