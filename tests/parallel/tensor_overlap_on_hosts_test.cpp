// Tensor-parallel products of processes whose rows travel over TCP while they multiply, and of
// threads that share memory: the same bits. On two hosts, where some ranks share memory, the
// gradients of one rank.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <vector>

#include "shoal/parallel/tensor/column_linear.h"
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

/// Returns whether loss and every gradient of this rank are those of one rank, in double, and
/// whether products run while rows travel as they should.
bool is_as_one_rank(const comm::Group& world, const Degrees& degrees, std::int64_t samples,
                    bool overlapped) {
  const ModelSpec spec = divisible(llama());
  const Data all = data(samples, 12);
  const Gradients expected = reference(spec, all);
  const mesh::Mesh mesh(world, degrees);
  const BatchShare share(mesh);
  const auto model = nn::make_model(spec);
  split_tensors(*model, mesh, {}, kSlowLinks);
  const bool gathers_itself =
      dynamic_cast<ColumnLinear*>(model->find_module("blocks.1.mlp.up")) != nullptr;
  model->materialize(at::kDouble);
  fill(*model);
  const auto reduction = data_parallel_on(*model, mesh);
  const double loss = run_share(*model, *reduction, share, all);
  bool same = std::abs(world.sum(loss) - expected.loss) < 1e-12;
  for (const auto& parameter : model->parameters()) {
    const at::Tensor whole = expected.of.at(parameter->name());
    const at::Tensor difference = parameter->gradient() - local_part(whole, parameter->box());
    same =
        same && difference.abs().max().item<double>() <= 1e-10 * whole.abs().max().item<double>();
  }
  return same && gathers_itself == overlapped;
}

// Four ranks of tp on two hosts of two, of which some share memory; two of tp on each host; and two
// of tp on different hosts, beside data ranks that share memory. Samples are cut, and columns.
TEST(TensorOverlapOnHosts, HasTheGradientsOfOneRankWhereSomeRanksShareMemory) {
  EXPECT_TRUE(comm::on_processes(
      4, comm::at_a_file(),
      [&](const comm::Group& world) {
        // Ranks 0 and 2, and then 1 and 3, lie on different hosts.
        const comm::Group crossed = world.split(0, world.rank() % 2 * 2 + world.rank() / 2);
        bool good = true;
        for (const std::int64_t samples : {4, 2}) {
          good = is_as_one_rank(world, {.tp = 4}, samples, false) && good;
          good = is_as_one_rank(world, {.dp_shard = 2, .tp = 2}, samples, false) && good;
          good = is_as_one_rank(crossed, {.dp_shard = 2, .tp = 2}, samples, true) && good;
        }
        return good;
      },
      2));
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
