// Pipelines between processes: over TCP, and over two "hosts" of two ranks each, which share memory
// inside and speak TCP between them.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/comm/rank_processes.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel {
namespace {

constexpr int kRanks = 4, kMicroBatches = 8;

/// True when every schedule gives the bits of one rank here.
bool runs_every_schedule(const comm::Group& group) {
  const auto spec = tiny_spec("gpt2-tiny", false);
  const auto batch = step_of(kMicroBatches);
  const auto whole = nn::make_model(spec);
  fill(*whole);
  const Reference reference = run_alone(*whole, batch);
  bool good = true;
  for (const std::string& name : schedule::schedule_names()) {
    const auto table = schedule::make_schedule(name, kRanks, chunks_of(name), kMicroBatches);
    Rank rank(spec, table, even_stages(8, table.stages()), group);
    for (int step = 0; step < 2; ++step) {
      rank.model->clear_gradients();
      good = group.sum(rank.pipeline->run(batch)) == reference.loss && good;
      for (const auto& parameter : rank.model->parameters()) {
        if (parameter->gradient().equal(reference.gradients.at(parameter->name()))) continue;
        std::fprintf(stderr, "rank %d: %s %s differs\n", group.rank(), name.c_str(),
                     parameter->name().c_str());
        good = false;
      }
    }
  }
  return good;
}

TEST(PipelineOnHosts, OverTcp) {
  EXPECT_TRUE(comm::on_processes(kRanks, comm::at_a_file(), runs_every_schedule));
}

TEST(PipelineOnHosts, OverTwoHosts) {
  EXPECT_TRUE(comm::on_processes(kRanks, comm::at_a_file(), runs_every_schedule, 2));
}

// Copies of a tied weight on the first and the last host.
TEST(PipelineOnHosts, CopiesOfTheEmbeddingOnTwoHosts) {
  EXPECT_TRUE(comm::on_processes(
      kRanks, comm::at_a_file(),
      [](const comm::Group& group) {
        const auto table = schedule::zero_bubble_h1(kRanks, kMicroBatches);
        Rank rank(tiny_spec("gpt2-tiny", true), table, {2, 2, 2, 2}, group);
        rank.pipeline->run(step_of(kMicroBatches));
        rank.tied->reduce();
        const auto embedding = rank.model->find_parameter("embedding.tokens.weight");
        const bool holds = group.rank() == 0 || group.rank() == kRanks - 1;
        if (!holds) return embedding == nullptr;
        const comm::Group pair = rank.tied->holders(*embedding);
        const at::Tensor first = embedding->gradient().clone();
        pair.broadcast(first, 0);
        return pair.size() == 2 && first.equal(embedding->gradient()) &&
               rank.tied->counts(*embedding) == (group.rank() == 0);
      },
      2));
}

}  // namespace
}  // namespace shoal::parallel
