#include "shoal/wire/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace shoal::wire {
namespace {

/// Callers that come together are counted in one line.
constexpr auto kGather = std::chrono::seconds(1);
constexpr auto kBetweenLines = std::chrono::seconds(10);

}  // namespace

void Refusals::add(const std::string& address) {
  const std::lock_guard lock(mutex_);
  if (count_ == reported_) not_before_ = std::max(not_before_, Clock::now() + kGather);
  ++count_;
  last_ = address;
}

std::uint64_t Refusals::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

std::string Refusals::text_locked() const {
  if (count_ == 0) return {};
  return fmt::format("{} {} not prove to know the job's key and {} refused here, the last from {}",
                     count_, count_ == 1 ? "caller did" : "callers did",
                     count_ == 1 ? "was" : "were", last_);
}

std::string Refusals::text() const {
  const std::lock_guard lock(mutex_);
  return text_locked();
}

void Refusals::report(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (count_ == reported_ || now < not_before_) return;
  fmt::print(stderr, "shoal: {}\n", text_locked());
  reported_ = count_;
  not_before_ = now + kBetweenLines;
}

}  // namespace shoal::wire
