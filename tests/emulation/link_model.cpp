#include "tests/emulation/link_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"

namespace shoal::emulation {
namespace {

/// The queues of connections that end are forgotten when there are so many.
constexpr std::size_t kMostFlows = 4096;

Duration from_seconds(double seconds) {
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

void add(PacketCount& to, const PacketCount& more) {
  to.packets += more.packets;
  to.bytes += more.bytes;
}

}  // namespace

// The queue is a fluid: its content is known at any time without an event for each departure, and
// no rounding accumulates from packet to packet.
std::optional<Clock::time_point> LinkModel::Queue::admit(std::uint64_t packet_bytes,
                                                         Clock::time_point now,
                                                         double bits_per_second,
                                                         std::size_t most_bytes) {
  const double drained = to_seconds(now - at) * bits_per_second / 8;
  const double waiting = std::max(bytes - drained, 0.0);
  const double filled = waiting + static_cast<double>(packet_bytes);
  // A millionth of a byte is rounding.
  constexpr double kRounding = 1e-6;
  if (filled > static_cast<double>(most_bytes) + kRounding) return std::nullopt;
  bytes = filled;
  at = now;
  return now + from_seconds(filled * 8 / bits_per_second);
}

void LinkModel::set(const LinkSpec& spec) {
  SHOAL_USER_CHECK(spec.delay >= Duration::zero() && spec.jitter >= Duration::zero(), "emulation",
                   "a link of {} ns delay and {} ns jitter", spec.delay.count(),
                   spec.jitter.count());
  SHOAL_USER_CHECK(spec.bits_per_second >= 0 && spec.flow_bits_per_second >= 0, "emulation",
                   "a link of {} bit/s with {} bit/s a connection", spec.bits_per_second,
                   spec.flow_bits_per_second);
  SHOAL_USER_CHECK(spec.loss >= 0 && spec.loss <= 1, "emulation", "a loss of {}", spec.loss);
  spec_ = spec;
  flow_bytes_.clear();
  if (spec.open) return;
  for (const Event& event : events_) add(counters_.cut, event.packet.size);
  events_.clear();
  queue_ = {};
  flows_.clear();
}

void LinkModel::offer(Packet packet, Clock::time_point now) {
  add(counters_.offered, packet.size);
  if (!spec_.open) return add(counters_.cut, packet.size);
  if (flow_bytes_.size() >= kMostFlows) flow_bytes_.clear();
  flow_bytes_[packet.flow] += packet.size.bytes;
  const double limit = limit_of(packet.flow);
  if (limit == 0) return enter_link(std::move(packet), now);
  if (flows_.size() >= kMostFlows) {
    std::erase_if(flows_, [&](const auto& flow) {
      const Queue& queue = flow.second;
      return queue.bytes * 8 <= to_seconds(now - queue.at) * limit_of(flow.first);
    });
  }
  const auto left = flows_[packet.flow].admit(packet.size.bytes, now, limit, spec_.queue_bytes);
  if (!left) return add(counters_.overflowed, packet.size);
  push(*left, false, std::move(packet));
}

std::uint64_t LinkModel::busiest_flow() const {
  const auto busiest =
      std::max_element(flow_bytes_.begin(), flow_bytes_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return busiest == flow_bytes_.end() ? 0 : busiest->first;
}

void LinkModel::enter_link(Packet packet, Clock::time_point at) {
  if (spec_.bits_per_second > 0) {
    const auto left = queue_.admit(packet.size.bytes, at, spec_.bits_per_second, spec_.queue_bytes);
    if (!left) return add(counters_.overflowed, packet.size);
    at = *left;
  }
  // A packet that is lost has taken its time on the link.
  std::uniform_real_distribution<double> uniform;
  if (spec_.loss > 0 && uniform(random_) < spec_.loss) return add(counters_.lost, packet.size);
  auto due = at + spec_.delay;
  if (spec_.jitter > Duration::zero())
    due += from_seconds(uniform(random_) * to_seconds(spec_.jitter));
  if (!spec_.reorder) due = std::max(due, last_due_);
  last_due_ = std::max(due, last_due_);
  push(due, true, std::move(packet));
}

std::optional<Clock::time_point> LinkModel::next() const {
  if (events_.empty()) return std::nullopt;
  return events_.front().at;
}

std::optional<LinkModel::Delivery> LinkModel::take(Clock::time_point now) {
  while (!events_.empty() && events_.front().at <= now) {
    Event event = pop();
    if (event.at_the_end) {
      add(counters_.delivered, event.packet.size);
      return Delivery{std::move(event.packet), event.at};
    }
    enter_link(std::move(event.packet), event.at);
  }
  return std::nullopt;
}

void LinkModel::push(Clock::time_point at, bool at_the_end, Packet packet) {
  events_.push_back({at, order_++, at_the_end, std::move(packet)});
  std::push_heap(events_.begin(), events_.end());
}

LinkModel::Event LinkModel::pop() {
  std::pop_heap(events_.begin(), events_.end());
  Event event = std::move(events_.back());
  events_.pop_back();
  return event;
}

}  // namespace shoal::emulation
