#include "shoal/collective/flight/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shoal::collective {

wire::Bytes Standing::pack() const {
  wire::Bytes bytes(kBytes);
  std::memcpy(bytes.data(), &entered, 8);
  std::memcpy(bytes.data() + 8, &left, 8);
  last.write(bytes.data() + 16);
  return bytes;
}

std::optional<Standing> Standing::unpack(std::span<const std::byte> bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  Standing standing;
  std::memcpy(&standing.entered, bytes.data(), 8);
  std::memcpy(&standing.left, bytes.data() + 8, 8);
  standing.last = TcpCall::read(bytes.data() + 16);
  return standing;
}

std::string Standing::against(std::uint64_t sequence) const {
  // The answer is relative to what the asking rank waits for: that decides which rank holds the
  // others up.
  const std::string call = entered == 0 ? "" : fmt::format("#{}, {}", entered, last.text());
  if (entered < sequence) {
    return fmt::format("never entered #{} ({})", sequence,
                       entered == 0 ? "nor any before" : "its last was " + call);
  }
  if (left >= sequence) return fmt::format("has left #{}", sequence);
  return fmt::format("is inside #{}{}", sequence,
                     entered > sequence ? fmt::format(" and has begun {}", call)
                                        : fmt::format(", {}", last.text()));
}

void FlightRecorder::enter(std::uint64_t sequence, const TcpCall& call) {
  const std::lock_guard lock(mutex_);
  // The lock is held briefly: another thread may be reading this for the answer to a peer.
  entries_[sequence % kKept] = {sequence, call, Clock::now(), {}};
  entered_ = sequence;
}

void FlightRecorder::leave(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[sequence % kKept];
  if (entry.sequence == sequence) entry.ended = Clock::now();
  // `left_` advances over all that are complete. An entry that was overwritten counts as complete.
  while (left_ < entered_) {
    const Entry& next = entries_[(left_ + 1) % kKept];
    if (next.sequence == left_ + 1 && next.ended == Clock::time_point{}) break;
    ++left_;
  }
}

Standing FlightRecorder::standing() const {
  const std::lock_guard lock(mutex_);
  return {entered_, left_, entries_[entered_ % kKept].call};
}

std::vector<FlightEntry> FlightRecorder::entries(int rank) const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightEntry> result;
  for (std::uint64_t s = entered_ - std::min<std::uint64_t>(entered_, kKept) + 1; s <= entered_;
       ++s) {
    const Entry& entry = entries_[s % kKept];
    result.push_back({rank, s, entry.call.text(), entry.began, entry.ended});
  }
  return result;
}

}  // namespace shoal::collective
