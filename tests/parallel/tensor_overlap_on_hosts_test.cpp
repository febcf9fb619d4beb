// Tensor-parallel products of processes whose rows travel over TCP while they multiply, and of
// threads that share memory: the same bits.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

#include "tests/comm/rank_processes.h"
#include "tests/parallel/shared_hashes.h"
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

void compute(const comm::Group& group, const SharedHashes& results) {
  const std::vector<TensorPass> all = passes(group.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    results.set(group.rank(), i, loss_and_gradients(group, all[i], kSlowLinks));
}

TEST(TensorOverlapOnHosts, HasTheBitsOfThreadsThatShareMemory) {
  const std::array<SharedHashes, 5> over_tcp;
  // Processes first: who has threads already does not fork.
  for (const int ranks : {2, 3, 4}) {
    EXPECT_TRUE(comm::on_processes(ranks, "", [&](const comm::Group& group) {
      compute(group, over_tcp[static_cast<std::size_t>(ranks)]);
      return true;
    }));
  }
  // Two hosts of two ranks: some share memory, and nothing is overlapped.
  const SharedHashes on_two_hosts;
  EXPECT_TRUE(comm::on_processes(
      4, comm::at_a_file(),
      [&](const comm::Group& group) {
        compute(group, on_two_hosts);
        return true;
      },
      2));
  EXPECT_NE(on_two_hosts.of(4), SharedHashes().of(4));
  at::set_num_threads(1);
  for (const int ranks : {2, 3, 4}) {
    const SharedHashes of_threads;
    comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& group) { compute(group, of_threads); });
    EXPECT_EQ(of_threads.of(ranks), over_tcp[static_cast<std::size_t>(ranks)].of(ranks)) << ranks;
  }
}

}  // namespace
}  // namespace shoal::parallel::tensor_overlap_on_hosts_test
