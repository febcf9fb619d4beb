#include "shoal/collective/route/link_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "shoal/base/duration.h"
#include "shoal/base/error.h"

namespace shoal::collective {
namespace {

using std::chrono::milliseconds;

/// So many bytes may always be on their way. A link of 1 Mbit/s carries them in half a second.
constexpr std::uint64_t kFirstBytes = 2 * LinkProbe::kMessageBytes;
/// Releases come in lumps: what the way carries is looked at over so long, or a round trip.
constexpr Duration kLeastLook = milliseconds(25);
constexpr Duration kLongestWait = milliseconds(5);
/// The last message of a direction: of another size than all others.
constexpr std::size_t kEndBytes = 8;

}  // namespace

LinkProbe::LinkProbe(wire::Transport& transport, int to, int from, const Options& options,
                     std::span<const std::byte> payload)
    : transport_(transport),
      to_(to),
      from_(from),
      options_(options),
      payload_(payload),
      ready_{options.group, 2 * options.number},
      data_{options.group, 2 * options.number + 1},
      said_end_(to < 0),
      heard_end_(from < 0) {}

// After a failure the transport must not read the payload any more.
LinkProbe::~LinkProbe() {
  if (!sent_.empty()) transport_.release_buffers(data_);
}

LinkSpeed LinkProbe::run(Deadline deadline) {
  // A rank sends when its receiver is there, which may have been held up by an earlier probe.
  if (from_ >= 0) transport_.send(from_, ready_, 0, wire::Bytes(1), {}, nullptr);
  ready_since_ = Clock::now();
  while (!done()) {
    const std::uint64_t seen = transport_.events();
    begin_when_ready();
    receive();
    note_released();
    send_more();
    transport_.flush();
    if (!done()) wait(seen, deadline);
  }
  if (from_ < 0) return {};
  const auto way = transport_.round_trip(from_) / 2;
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(way).count();
  return {.kbit_s = kbit_s(), .us = static_cast<std::uint32_t>(us)};
}

bool LinkProbe::done() const { return heard_end_ && said_end_ && sent_.empty(); }

void LinkProbe::begin_when_ready() {
  if (to_ >= 0 && !began_ && transport_.take(to_, ready_)) began_ = Clock::now();
}

void LinkProbe::wait(std::uint64_t seen, Deadline deadline) {
  transport_.check();
  const auto fail = [&](int peer, ErrorKind kind, const char* what) {
    Error error(kind, "measure links", fmt::format("rank {} {}", peer, what));
    error.at(transport_.rank(), transport_.size()).from(peer);
    transport_.abort(error);
    transport_.check();
  };
  for (const int peer : {to_, from_}) {
    const bool missed = peer >= 0 && ((peer == to_ && !began_) || (peer == from_ && !heard_end_));
    if (missed && transport_.gone(peer) && !transport_.has_arrived(peer, ready_) &&
        !transport_.has_arrived(peer, data_))
      fail(peer, ErrorKind::kPeerLost, "has left");
  }
  if (deadline.passed()) {
    const bool sender = heard_end_ || (to_ >= 0 && !began_);
    fail(sender ? to_ : from_, ErrorKind::kTimeout, "did not do its part in time");
  }
  transport_.wait_for_event(seen, std::min<Duration>(kLongestWait, deadline.left()));
}

void LinkProbe::receive() {
  if (from_ < 0) return;
  while (const auto chunk = transport_.take(from_, data_)) {
    if (chunk->total() == kEndBytes) {
      heard_end_ = true;
      continue;
    }
    received_ += chunk->bytes();
    arrivals_.emplace_back(Clock::now(), received_);
  }
}

void LinkProbe::note_released() {
  const std::uint64_t before = released_;
  while (!sent_.empty() && sent_.front()->load(std::memory_order_acquire)) {
    sent_.pop_front();
    released_ += kMessageBytes;
  }
  if (released_ != before) releases_.emplace_back(Clock::now(), released_);
}

// Twice what the way carries in a round trip: enough to fill it, and little that is still on its
// way when the time is over.
std::uint64_t LinkProbe::window() const {
  const auto since = Clock::now() - std::max(transport_.round_trip(to_), kLeastLook);
  const auto first = std::partition_point(releases_.begin(), releases_.end(),
                                          [&](const Arrival& a) { return a.first < since; });
  const std::uint64_t before = first == releases_.begin() ? 0 : std::prev(first)->second;
  return std::max(kFirstBytes, LinkProbe::kMessageBytes + 2 * (released_ - before));
}

void LinkProbe::send_more() {
  if (said_end_ || !began_) return;
  if (Clock::now() - *began_ >= options_.sends_for) {
    said_end_ = true;
    transport_.send(to_, data_, 0, wire::Bytes(kEndBytes), {}, nullptr);
    return;
  }
  for (const std::uint64_t most = window(); (sent_.size() + 1) * kMessageBytes <= most;) {
    sent_.push_back(std::make_shared<std::atomic<bool>>(false));
    transport_.send(to_, data_, 0, {}, payload_, sent_.back());
  }
}

std::uint32_t LinkProbe::kbit_s() const {
  double rate = bytes_per_second(arrivals_);
  // A way on which nothing but one lump has come: since it could.
  if (rate == 0 && !arrivals_.empty())
    rate = static_cast<double>(received_) / to_seconds(arrivals_.back().first - ready_since_);
  const double most = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<double>(8e-3 * rate, LinkMatrix::kLeastKbit, most));
}

double bytes_per_second(std::span<const std::pair<Clock::time_point, std::uint64_t>> arrivals) {
  if (arrivals.size() < 2) return 0;
  const Duration half = (arrivals.back().first - arrivals.front().first) / 2;
  double best = 0;
  for (std::size_t from = 0, to = 0; to < arrivals.size(); ++to) {
    // The latest beginning that leaves half of the time.
    while (from + 1 < to && arrivals[to].first - arrivals[from + 1].first >= half) ++from;
    const Duration taken = arrivals[to].first - arrivals[from].first;
    if (taken < half || taken <= Duration::zero()) continue;
    const auto bytes = static_cast<double>(arrivals[to].second - arrivals[from].second);
    best = std::max(best, bytes / to_seconds(taken));
  }
  return best;
}

}  // namespace shoal::collective
