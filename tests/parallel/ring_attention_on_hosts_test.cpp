// Ring attention of processes that pass keys and values on over TCP, that read them in each other's
// arenas, and of threads that do: the same bits.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <chrono>
#include <vector>

#include "shoal/base/hash.h"
#include "tests/comm/rank_processes.h"
#include "tests/parallel/ring_pass.h"

namespace shoal::parallel::ring_attention_on_hosts_test {
namespace {

/// What the ranks of a group have computed: a hash for each rank and pass, in memory that forked
/// processes share.
class Results {
 public:
  Results()
      : found_(static_cast<std::uint64_t*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Results() { munmap(found_, kBytes); }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  /// Computes all passes on the ranks of `group`, this rank being `rank` of the results.
  bool compute(const comm::Group& group, int rank, bool in_place) const {
    const auto passes = ring_passes();
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const at::Tensor row = loss_and_gradients(group, passes[i]);
      std::uint64_t hash = 0;
      for (std::int64_t k = 0; k < row.numel(); ++k)
        hash = splitmix64(hash ^ std::bit_cast<std::uint64_t>(row.const_data_ptr<double>()[k]));
      found_[static_cast<std::size_t>(rank) * kPasses + i] = hash;
    }
    return group.lend_in_place(at::zeros({1})).has_value() == in_place;
  }
  std::vector<std::uint64_t> of(int ranks) const {
    return {found_, found_ + static_cast<std::size_t>(ranks) * kPasses};
  }

 private:
  static constexpr std::size_t kPasses = 8;
  static constexpr std::size_t kBytes = 4 * kPasses * sizeof(std::uint64_t);
  std::uint64_t* found_;
};

TEST(RingAttention, HasTheSameBitsOverTcpAndInPlace) {
  std::array<Results, 5> over_tcp;
  // Processes first: who has threads already does not fork.
  for (const int ranks : {2, 3, 4}) {
    const Results& results = over_tcp[static_cast<std::size_t>(ranks)];
    EXPECT_TRUE(comm::on_processes(ranks, "", [&](const comm::Group& group) {
      return results.compute(group, group.rank(), false);
    }));
  }
  // Two hosts of two: each host for itself, and then all four, which copy.
  const Results in_arenas;
  const Results on_two_hosts;
  EXPECT_TRUE(comm::on_processes(
      4, comm::at_a_file(),
      [&](const comm::Group& world) {
        return in_arenas.compute(world.split(world.rank() / 2, 0), world.rank(), true) &&
               on_two_hosts.compute(world, world.rank(), false);
      },
      2));
  auto twice = over_tcp[2].of(2);
  const auto again = twice;
  twice.insert(twice.end(), again.begin(), again.end());
  EXPECT_EQ(in_arenas.of(4), twice);
  EXPECT_EQ(on_two_hosts.of(4), over_tcp[4].of(4));
  at::set_num_threads(1);
  for (const int ranks : {2, 3, 4}) {
    const Results of_threads;
    comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& group) {
                           EXPECT_TRUE(of_threads.compute(group, group.rank(), true));
                         });
    EXPECT_EQ(of_threads.of(ranks), over_tcp[static_cast<std::size_t>(ranks)].of(ranks)) << ranks;
  }
}

}  // namespace
}  // namespace shoal::parallel::ring_attention_on_hosts_test
