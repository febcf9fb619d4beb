// Pipelines between processes: over TCP, and over two "hosts" of two ranks each, which share memory
// inside and speak TCP between them.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "shoal/ops/differentiable.h"
#include "tests/comm/rank_processes.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::pipeline_on_hosts_test {
namespace {

constexpr int kRanks = 4, kMicroBatches = 8;

/// True when a step of this table gives the bits of one rank here, twice.
bool gives_the_same_bits(const comm::Group& group, const schedule::Schedule& table) {
  const auto spec = tiny_spec("gpt2-tiny", false);
  const auto batch = step_of(table.micro_batches);
  const auto whole = nn::make_model(spec);
  fill(*whole);
  const Reference reference = run_alone(*whole, batch);
  bool good = true;
  Rank rank(spec, table, even_stages(8, table.stages()), group);
  for (int step = 0; step < 2; ++step) {
    rank.model->clear_gradients();
    good = group.sum(rank.pipeline->run(batch)) == reference.loss && good;
    for (const auto& parameter : rank.model->parameters()) {
      if (parameter->gradient().equal(reference.gradients.at(parameter->name()))) continue;
      std::fprintf(stderr, "rank %d: %s %s differs\n", group.rank(), table.name.c_str(),
                   parameter->name().c_str());
      good = false;
    }
  }
  return good;
}

bool runs_every_schedule(const comm::Group& group) {
  bool good = true;
  for (const std::string& name : schedule::schedule_names()) {
    good = gives_the_same_bits(
               group, schedule::make_schedule(name, kRanks, chunks_of(name), kMicroBatches)) &&
           good;
  }
  return good;
}

TEST(PipelineOnHosts, OverTcp) {
  EXPECT_TRUE(comm::on_processes(kRanks, comm::at_a_file(), runs_every_schedule));
}

TEST(PipelineOnHosts, OverTwoHosts) {
  EXPECT_TRUE(comm::on_processes(kRanks, comm::at_a_file(), runs_every_schedule, 2));
}

// On one host, without an arena: the sender of a message copies it piece by piece.
TEST(PipelineOnHosts, OverSharedMemoryThroughStagingChunks) {
  EXPECT_TRUE(comm::on_processes(kRanks, comm::at_a_file(), runs_every_schedule, 1));
}

TEST(PipelineOnHosts, ManyMessagesBeforeTheOneThatIsAwaited) {
  for (const int hosts : {0, 1}) {
    EXPECT_TRUE(comm::on_processes(
        2, comm::at_a_file(),
        [](const comm::Group& group) { return gives_the_same_bits(group, many_ahead()); }, hosts));
  }
}

// Copies of a tied weight on the first and the last host.
TEST(PipelineOnHosts, CopiesOfTheEmbeddingOnTwoHosts) {
  EXPECT_TRUE(comm::on_processes(
      kRanks, comm::at_a_file(),
      [](const comm::Group& group) {
        const auto table = schedule::zero_bubble_h1(kRanks, kMicroBatches);
        Rank rank(tiny_spec("gpt2-tiny", true), table, {2, 2, 2, 2}, group);
        rank.pipeline->run(step_of(kMicroBatches));
        rank.reduce_ties();
        const auto embedding = rank.model->find_parameter("embedding.tokens.weight");
        const bool holds = group.rank() == 0 || group.rank() == kRanks - 1;
        if (!holds) return embedding == nullptr;
        const comm::Group pair = rank.tied->holders(*embedding);
        const at::Tensor first = embedding->gradient().clone();
        pair.broadcast(first, 0);
        return pair.size() == 2 && first.equal(embedding->gradient()) &&
               (rank.tied->holders(*embedding).rank() == 0) == (group.rank() == 0);
      },
      2));
}

/// A unit that takes four milliseconds in each direction, and passes its input on.
class Slow final : public nn::Module {
 public:
  Slow() { weight_ = parameter("weight", {1}, model::Init::kOnes); }

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    const ops::Weight weight = weight_->weight();
    const auto backward = [sink = weight.sink](const ops::Tensors&, const ops::Tensors& dy) {
      std::this_thread::sleep_for(kTime);
      return ops::Tensors{dy[0], ops::hand_over(sink, dy[0].view({-1}).narrow(0, 0, 1))};
    };
    const at::Tensor y = ops::differentiable("slow", {x, weight.tensor}, [&](const ops::Wanted&) {
      std::this_thread::sleep_for(kTime);
      return ops::Recorded{{x.detach()}, {}, backward};
    })[0];
    return context.labels.defined() ? y.sum() : y;
  }

 private:
  static constexpr auto kTime = std::chrono::milliseconds(4);
  std::shared_ptr<nn::Parameter> weight_;
};

// Without an arena a sender copies a message into two chunks of shared memory in turn. It does so
// between the units of its next pass, forward and backward: the receiver need not wait for the end
// of that.
TEST(PipelineOnHosts, AMessageArrivesWhileItsSenderComputes) {
  const auto body = [](const comm::Group& group) {
    constexpr std::int64_t kWidth = 1 << 20;  // of float32: 16 chunks
    constexpr int kUnits = 40;
    const int rank = group.rank();
    Stages stages{{{rank, {}}}, {}, {kWidth, kWidth}, false};
    for (int i = 0; i < kUnits; ++i) {
      const auto unit = std::make_shared<Slow>();
      unit->materialize();
      unit->reset_parameters(Key(1));
      stages.local[0].units.push_back(unit);
    }
    std::vector<MicroBatch> batch(2);
    for (MicroBatch& one : batch) {
      one.input = at::ones({1, kWidth}, at::kFloat);
      if (rank == 1) one.context.labels = at::ones({1}, at::kLong);
    }
    // By action of this rank: the time at which it began. Processes of a machine have one clock.
    std::map<std::string, double> begin;
    Pipeline pipeline(group, schedule::gpipe(2, 2), std::move(stages),
                      {.action = [&](const schedule::Action& action) {
                        begin[schedule::to_string(action)] =
                            std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
                      }});
    pipeline.run(batch);
    const auto of_rank = [&](int owner, const char* action) {
      return group.sum(rank == owner ? begin.at(action) : 0);
    };
    // A send follows its pass. Received before the sender was through with its next pass:
    const bool forward = of_rank(1, "1F0") < of_rank(0, "0SEND_F1");
    const bool backward = of_rank(0, "0B0") < of_rank(1, "1SEND_B1");
    if (!forward || !backward)
      std::fprintf(stderr, "rank %d: forward %d, backward %d\n", rank, forward, backward);
    return forward && backward;
  };
  EXPECT_TRUE(comm::on_processes(2, comm::at_a_file(), body, 1));
}

}  // namespace
}  // namespace shoal::parallel::pipeline_on_hosts_test
