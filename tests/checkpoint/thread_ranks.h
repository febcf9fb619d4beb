#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "shoal/comm/world.h"

namespace shoal::checkpoint::testing {

/// Runs `body` once per rank, each in a thread. Rethrows what went wrong first.
inline void run_ranks(int ranks, const std::function<void(const comm::Group&)>& body) {
  comm::run_on_threads({.size = ranks, .arena = false}, body);
}

/// The same, but what each rank threw comes back, null where nothing.
inline std::vector<std::exception_ptr> on_ranks(
    int ranks, const std::function<void(const comm::Group&)>& body) {
  std::vector<std::exception_ptr> thrown(ranks);
  run_ranks(ranks, [&](const comm::Group& group) {
    try {
      body(group);
    } catch (...) {
      thrown[group.rank()] = std::current_exception();
    }
  });
  return thrown;
}

}  // namespace shoal::checkpoint::testing
