// Tensor-parallel products of processes whose rows travel over TCP while they multiply, and of
// threads that share memory: the same bits.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <chrono>
#include <vector>

#include "shoal/base/hash.h"
#include "tests/comm/rank_processes.h"
#include "tests/parallel/tensor_pass.h"

namespace shoal::parallel::tensor_overlap_on_hosts_test {
namespace {

/// Two parts of 1.5 MB: a message is larger than what the kernel buffers of a connection hold, so
/// that it goes on while products run.
TensorPass large_pass() {
  ModelSpec spec = divisible(gpt2());
  spec.hidden = 384, spec.head_size = 32, spec.ffn = 768, spec.sequence = 1024, spec.layers = 1;
  return {spec, 2, 1024};
}

std::vector<TensorPass> passes(int ranks) {
  std::vector<TensorPass> all = tensor_passes();
  if (ranks == 2) all.push_back(large_pass());
  return all;
}

/// What each rank has computed in each pass, as a hash, in memory that forked processes share.
class Results {
 public:
  Results()
      : found_(static_cast<std::uint64_t*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Results() { munmap(found_, kBytes); }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  void compute(const comm::Group& group) const {
    std::uint64_t* at = found_ + static_cast<std::size_t>(group.rank()) * kPasses;
    for (const TensorPass& pass : passes(group.size())) {
      const at::Tensor row = loss_and_gradients(group, pass, kSlowLinks);
      std::uint64_t hash = 0;
      for (std::int64_t k = 0; k < row.numel(); ++k)
        hash = splitmix64(hash ^ std::bit_cast<std::uint64_t>(row.const_data_ptr<double>()[k]));
      *at++ = hash;
    }
  }
  std::vector<std::uint64_t> of(int ranks) const {
    return {found_, found_ + static_cast<std::size_t>(ranks) * kPasses};
  }

 private:
  static constexpr std::size_t kPasses = 16;
  static constexpr std::size_t kBytes = 4 * kPasses * sizeof(std::uint64_t);
  std::uint64_t* found_;
};

TEST(TensorOverlapOnHosts, HasTheBitsOfThreadsThatShareMemory) {
  const std::array<Results, 5> over_tcp;
  // Processes first: who has threads already does not fork.
  for (const int ranks : {2, 3, 4}) {
    EXPECT_TRUE(comm::on_processes(ranks, "", [&](const comm::Group& group) {
      over_tcp[static_cast<std::size_t>(ranks)].compute(group);
      return true;
    }));
  }
  // Two hosts of two ranks: some share memory, and nothing is overlapped.
  const Results on_two_hosts;
  EXPECT_TRUE(comm::on_processes(
      4, comm::at_a_file(),
      [&](const comm::Group& group) {
        on_two_hosts.compute(group);
        return true;
      },
      2));
  EXPECT_NE(on_two_hosts.of(4), Results().of(4));
  at::set_num_threads(1);
  for (const int ranks : {2, 3, 4}) {
    const Results of_threads;
    comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& group) { of_threads.compute(group); });
    EXPECT_EQ(of_threads.of(ranks), over_tcp[static_cast<std::size_t>(ranks)].of(ranks)) << ranks;
  }
}

}  // namespace
}  // namespace shoal::parallel::tensor_overlap_on_hosts_test
