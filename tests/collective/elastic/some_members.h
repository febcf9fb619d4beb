#pragma once

#include <atomic>
#include <cstddef>
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

/// A number that each step adds something to.
struct Member {
  double value = 1;
  double next = 0;
  int attempts = 0;
  int applied = 0;
  std::function<void(const Roster&)> meanwhile = [](const Roster&) {};  ///< called in each attempt
  std::vector<StepResult> results;
  std::vector<std::string> faults;
  std::unique_ptr<ElasticGroup> group;

  static std::vector<std::byte> bytes_of(double value) {
    std::vector<std::byte> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  ElasticGroup::Options options(const membership::Settings& settings = patient()) {
    ElasticGroup::Options options;
    options.network = network(settings);
    options.step_timeout = std::chrono::minutes(2);
    options.state.write = [this] { return bytes_of(value); };
    options.state.read = [this](std::span<const std::byte> bytes) {
      std::memcpy(&value, bytes.data(), sizeof value);
    };
    options.on_fault = [this](const Error& error) { faults.emplace_back(error.what()); };
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
    return {StateAccess::sha256(bytes_of(next)), 1};
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
