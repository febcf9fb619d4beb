#include "shoal/collective/elastic/state_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <type_traits>

#include "shoal/base/error.h"
#include "shoal/collective/elastic/state_exchange.h"

namespace shoal::collective::elastic {
namespace {

/// The state travels in parts, so that a commit stops it soon, and no buffer has its size.
constexpr std::size_t kPartBytes = 4 << 20;
constexpr std::size_t kLeastPartBytes = 64 << 10;
/// A provider that waits for the end of a step says so that often.
constexpr Duration kHoldPause = std::chrono::milliseconds(200);
constexpr Duration kLongestSleep = std::chrono::milliseconds(50);

enum class Head : std::uint32_t {
  kBegin,  ///< a state of `bytes` bytes, that of `place`; what came before is of no use
  kPart,   ///< `bytes` bytes of it follow
  kHold,   ///< the provider attempts a step, which may make another state
  kEnd,    ///< that was all of it
  kStale,  ///< the state was committed over too often
};
/// Goes before each part. Both ends run the same program.
struct Header {
  Head head = Head::kHold;
  std::uint64_t bytes = 0;
  std::uint64_t lineage = 0;
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  Digest state{};
};
static_assert(std::is_trivially_copyable_v<Header>);

/// One stream, of all states that it begins with.
class Sender {
 public:
  Sender(Communicator& pair, SteadyState& state, const StreamPace& pace)
      : pair_(pair), state_(state), pace_(pace), begun_(Clock::now()) {
    part_bytes_ = kPartBytes;
    if (pace.bytes_per_second > 0) {
      part_bytes_ = static_cast<std::size_t>(
          std::clamp<std::uint64_t>(pace.bytes_per_second / 10, kLeastPartBytes, kPartBytes));
    }
  }

  void run() {
    for (int begins = 0; begins < kMostStreamBegins; ++begins) {
      if (sends_whole(*next_copy())) return say({.head = Head::kEnd});
    }
    say({.head = Head::kStale});
  }

 private:
  std::shared_ptr<const SteadyState::Copy> next_copy() {
    for (;;) {
      if (auto copy = state_.copy(kHoldPause)) return copy;
      hold();
    }
  }

  /// Returns false where the state was committed over before the end.
  bool sends_whole(const SteadyState::Copy& copy) {
    const membership::Place& place = copy.place;
    say({.head = Head::kBegin,
         .bytes = copy.bytes.size(),
         .lineage = place.lineage,
         .epoch = place.epoch,
         .step = place.step,
         .samples = place.samples,
         .state = place.state});
    for (std::size_t at = 0; at < copy.bytes.size();) {
      if (!waits_and_is_current(copy)) return false;
      const std::size_t part = std::min(part_bytes_, copy.bytes.size() - at);
      say({.head = Head::kPart, .bytes = part});
      // The root of a broadcast only reads.
      broadcast(pair_, const_cast<std::byte*>(copy.bytes.data()) + at, part, pace_.deadline);
      at += part;
      keep_to_pace(part);
    }
    // A joiner that comes in behind a commit has missed it, so it does not come before.
    return waits_and_is_current(copy);
  }

  bool waits_and_is_current(const SteadyState::Copy& copy) {
    pace_.may_go_on();
    while (!state_.wait_between_steps(kHoldPause)) hold();
    return state_.is_current(copy);
  }

  void hold() {
    pace_.may_go_on();
    say({.head = Head::kHold});
  }

  void say(Header header) { broadcast(pair_, &header, sizeof header, pace_.deadline); }

  void keep_to_pace(std::size_t bytes) {
    if (pace_.bytes_per_second == 0) return;
    sent_ += static_cast<double>(bytes);
    const std::chrono::duration<double> due(sent_ / static_cast<double>(pace_.bytes_per_second));
    const auto until = begun_ + std::chrono::duration_cast<Duration>(due);
    while (Clock::now() < until) {
      pace_.may_go_on();
      std::this_thread::sleep_for(std::min<Duration>(kLongestSleep, until - Clock::now()));
    }
  }

  Communicator& pair_;
  SteadyState& state_;
  const StreamPace& pace_;
  const Clock::time_point begun_;
  std::size_t part_bytes_ = 0;
  double sent_ = 0;
};

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kData, "state", what); }

/// Checks and takes what follows a header of a part.
void receive_part(Communicator& pair, const Header& header, std::uint64_t announced,
                  std::vector<std::byte>& bytes, Deadline deadline) {
  if (header.bytes == 0 || header.bytes > kPartBytes || header.bytes > announced - bytes.size()) {
    refuse(fmt::format("a part of {} bytes comes behind {} of {}, in parts of at most {}",
                       header.bytes, bytes.size(), announced, kPartBytes));
  }
  const std::size_t at = bytes.size();
  bytes.resize(at + static_cast<std::size_t>(header.bytes));
  broadcast(pair, bytes.data() + at, static_cast<std::size_t>(header.bytes), deadline);
}

}  // namespace

void send_state(Communicator& pair, SteadyState& state, const StreamPace& pace) {
  Sender(pair, state, pace).run();
}

std::optional<ReceivedState> receive_state(Communicator& pair, Deadline deadline,
                                           const std::function<void()>& may_go_on) {
  ReceivedState received;
  std::uint64_t announced = 0;
  for (int begins = 0;;) {
    may_go_on();
    if (deadline.passed())
      throw Error(ErrorKind::kTimeout, "state", "the state has not come in time");
    Header header;
    broadcast(pair, &header, sizeof header, deadline);
    switch (header.head) {
      case Head::kBegin:
        if (++begins > kMostStreamBegins) refuse(fmt::format("a stream begins {} times", begins));
        received.place = {.lineage = header.lineage,
                          .epoch = header.epoch,
                          .step = header.step,
                          .state = header.state,
                          .samples = header.samples};
        announced = header.bytes;
        received.bytes.clear();
        break;
      case Head::kPart:
        receive_part(pair, header, announced, received.bytes, deadline);
        break;
      case Head::kHold:
        break;
      case Head::kEnd:
        if (begins == 0 || received.bytes.size() != announced) {
          refuse(
              fmt::format("a stream ends behind {} of {} bytes", received.bytes.size(), announced));
        }
        return received;
      case Head::kStale:
        return std::nullopt;
      default:
        refuse("a part of an unknown kind");
    }
  }
}

}  // namespace shoal::collective::elastic
