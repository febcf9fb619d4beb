#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/wire/store.h"

namespace shoal::collective {

inline Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

/// Runs `body(store, rank)` on `ranks` threads, with one store on loopback through which they
/// connect. Returns what each threw, empty where it threw nothing.
inline std::vector<std::optional<Error>> on_network(
    int ranks, const std::function<void(const wire::Endpoint& store, int rank)>& body) {
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(store.endpoint(), rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

/// Returns what `make` builds, after each of the ranks that `all` counts has built its own or
/// failed to.
template <class Make>
auto built_by_all(std::latch& all, Make&& make) {
  struct Arrival {
    std::latch& all;
    explicit Arrival(std::latch& counted) : all(counted) {}
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    ~Arrival() { all.arrive_and_wait(); }
  };
  const Arrival arrival(all);
  return make();
}

inline void expect_none(const std::vector<std::optional<Error>>& errors) {
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

}  // namespace shoal::collective
