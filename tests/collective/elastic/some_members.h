#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/collective/elastic/elastic_group.h"
#include "tests/collective/elastic/some_carriers.h"

namespace shoal::collective::elastic {

/// A number that each step adds something to, with bytes that make the state larger.
struct Member {
  double value = 1;
  std::size_t ballast = 0;
  std::atomic<int> written{0};  ///< copies of the state that were made
  std::atomic<int> taken{0};    ///< states that were taken over
  std::function<void(std::vector<std::byte>&)> spoil = [](std::vector<std::byte>&) {};
  double next = 0;
  int attempts = 0;
  int applied = 0;
  std::function<void(const Roster&)> meanwhile = [](const Roster&) {};  ///< called in each attempt
  std::function<void()> may_go_on = [] {};                              ///< called while it waits
  std::vector<StepResult> results;
  std::vector<std::string> faults;
  std::unique_ptr<ElasticGroup> group;

  static std::vector<std::byte> bytes_of(double value) {
    std::vector<std::byte> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  std::vector<std::byte> state_of(double value) const {
    std::vector<std::byte> bytes = bytes_of(value);
    bytes.resize(bytes.size() + ballast, std::byte{7});
    return bytes;
  }
  ElasticGroup::Options options(const membership::Settings& settings = patient()) {
    ElasticGroup::Options options;
    options.network = network(settings);
    options.step_timeout = std::chrono::minutes(2);
    options.state.write = [this] {
      ++written;
      std::vector<std::byte> bytes = state_of(value);
      spoil(bytes);
      return bytes;
    };
    options.state.read = [this](std::span<const std::byte> bytes) {
      ++taken;
      std::memcpy(&value, bytes.data(), sizeof value);
    };
    options.on_fault = [this](const Error& error) { faults.emplace_back(error.what()); };
    options.may_go_on = [this] { may_go_on(); };
    return options;
  }
  /// Each member contributes its place plus one.
  Attempt attempt(Communicator& communicator, const Roster& roster) {
    ++attempts;
    meanwhile(roster);
    double sum = roster.rank + 1;
    communicator.wait(communicator.start(
        {.kind = Kind::kAllReduce, .type = ElementType::kF64, .buffer = {&sum, &sum, 1}}));
    next = value + sum;
    return {StateAccess::sha256(state_of(next)), 1};
  }
  void apply() {
    value = next;
    ++applied;
  }
  void step() {
    results.push_back(group->step(
        group->next_step(),
        [this](const std::shared_ptr<Communicator>& communicator, const Roster& roster) {
          return attempt(*communicator, roster);
        },
        [this] { apply(); }));
  }
};

/// As `options`, of members whose state changes in `apply` alone and is streamed that fast.
inline ElasticGroup::Options steady(Member& member, std::uint64_t bytes_per_second = 0,
                                    const membership::Settings& settings = patient()) {
  ElasticGroup::Options options = member.options(settings);
  options.state.steady = true;
  options.stream_bytes_per_second = bytes_per_second;
  return options;
}

/// A thread that is joined at the end of the test.
class Thread {
 public:
  explicit Thread(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          try {
            body();
          } catch (const std::exception& thrown) {
            error = thrown.what();
          }
          ended = true;
        }) {}
  ~Thread() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  std::string error;  ///< what it threw; to be read behind `join`
  std::atomic<bool> ended{false};

 private:
  std::thread thread_;
};

}  // namespace shoal::collective::elastic
