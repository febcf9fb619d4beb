#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
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

inline void expect_none(const std::vector<std::optional<Error>>& errors) {
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

}  // namespace shoal::collective
