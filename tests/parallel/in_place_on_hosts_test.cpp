// Ring attention, exchanged heads and divided experts of processes that send what others need over
// TCP, that read it in each other's arenas, and of threads that do: the same bits.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>

#include "tests/comm/rank_processes.h"
#include "tests/parallel/divided_pass.h"
#include "tests/parallel/shared_hashes.h"

namespace shoal::parallel::in_place_on_hosts_test {
namespace {

/// Computes all passes on the ranks of `group`, this rank being `rank` of the results. Returns
/// whether the ranks read in place as they should.
bool compute(const comm::Group& group, const SharedHashes& results, int rank, bool in_place) {
  std::vector<DividedPass> passes = ring_passes();
  for (const auto& more : {head_passes(group.size()), expert_passes()})
    passes.insert(passes.end(), more.begin(), more.end());
  for (std::size_t i = 0; i < passes.size(); ++i)
    results.set(rank, i, loss_and_gradients(group, passes[i]));
  return group.lend_in_place(at::zeros({1})).has_value() == in_place;
}

TEST(InPlace, HasTheSameBitsAsOverTcp) {
  std::array<SharedHashes, 5> over_tcp;
  // Processes first: who has threads already does not fork.
  for (const int ranks : {2, 3, 4}) {
    const SharedHashes& results = over_tcp[static_cast<std::size_t>(ranks)];
    EXPECT_TRUE(comm::on_processes(ranks, "", [&](const comm::Group& group) {
      return compute(group, results, group.rank(), false);
    }));
  }
  // Two hosts of two: each host for itself, and then all four, which copy.
  const SharedHashes in_arenas;
  const SharedHashes on_two_hosts;
  EXPECT_TRUE(comm::on_processes(
      4, comm::at_a_file(),
      [&](const comm::Group& world) {
        return compute(world.split(world.rank() / 2, 0), in_arenas, world.rank(), true) &&
               compute(world, on_two_hosts, world.rank(), false);
      },
      2));
  auto twice = over_tcp[2].of(2);
  const auto again = twice;
  twice.insert(twice.end(), again.begin(), again.end());
  EXPECT_EQ(in_arenas.of(4), twice);
  EXPECT_EQ(on_two_hosts.of(4), over_tcp[4].of(4));
  at::set_num_threads(1);
  for (const int ranks : {2, 3, 4}) {
    const SharedHashes of_threads;
    comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& group) {
                           EXPECT_TRUE(compute(group, of_threads, group.rank(), true));
                         });
    EXPECT_EQ(of_threads.of(ranks), over_tcp[static_cast<std::size_t>(ranks)].of(ranks)) << ranks;
  }
}

}  // namespace
}  // namespace shoal::parallel::in_place_on_hosts_test
