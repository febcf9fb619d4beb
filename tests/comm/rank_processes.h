#pragma once

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "shoal/comm/world.h"

namespace shoal::comm {

/// Runs `body` on `ranks` child processes over TCP, or as `hosts` hosts with equal blocks of ranks;
/// true when each returned true, or ended with its code (-1: by a signal). `costs_of`: by rank what
/// it has of WorldOptions::link_costs.
inline bool on_processes(int ranks, const std::string& rendezvous,
                         const std::function<bool(const Group&)>& body, int hosts = 0,
                         const std::vector<int>& codes = {},
                         const std::function<collective::CostModel(int)>& costs_of = {}) {
  const std::string name = fmt::format("shoal-test-{}", ::getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    // More threads than cores wait for each other, busily.
    at::set_num_threads(1);
    bool good = false;
    try {
      const Group group =
          connect({.name = name,
                   .key = name,
                   .rank = rank,
                   .size = ranks,
                   .arena = hosts != 1,
                   .transport = hosts == 0 ? Transport::kTcp : Transport::kAutomatic,
                   .rendezvous = rendezvous,
                   .network = {.host = hosts == 0 ? "" : fmt::format("{}", rank * hosts / ranks),
                               .interface = rendezvous.starts_with("file:") ? "lo" : "",
                               .link_costs = costs_of ? costs_of(rank) : collective::CostModel()},
                   .timeout = std::chrono::seconds(60)});
      good = body(group);
      group.barrier();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::_exit(good ? 0 : 1);
  }
  bool all = true;
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    ::waitpid(children[i], &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    all = all && code == (codes.empty() ? 0 : codes[i]);
  }
  if (rendezvous.starts_with("file:"))
    std::remove(rendezvous.c_str() + 5);  // rank 0 may have had no time to
  return all;
}

/// A place where ranks meet as those of several hosts do.
inline std::string at_a_file() {
  return fmt::format("file:{}/shoal-test-{}", ::testing::TempDir(), ::getpid());
}

}  // namespace shoal::comm
