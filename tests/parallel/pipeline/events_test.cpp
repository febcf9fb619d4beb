// What a pipeline tells its caller and when: complete gradients, losses, parameters that are ready.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::events_test {
namespace {

constexpr int kRanks = 3, kMicroBatches = 4;

model::ModelSpec spec() { return tiny_spec("gpt2-tiny", false); }

/// The reference after `change` was applied to the model.
Reference reference_with(const std::function<void(nn::Model&)>& change,
                         std::vector<MicroBatch> batch) {
  const auto model = nn::make_model(spec());
  fill(*model);
  change(*model);
  return run_alone(*model, batch);
}

void expect_all_equal(const nn::Model& model, const Gradients& expected, const std::string& where) {
  for (const auto& parameter : model.parameters()) {
    const auto found = expected.find(parameter->name());
    const at::Tensor gradient = parameter->gradient();
    if (found == expected.end()) {
      EXPECT_FALSE(gradient.defined()) << where << " " << parameter->name();
    } else {
      ASSERT_TRUE(gradient.defined()) << where << " " << parameter->name();
      EXPECT_TRUE(gradient.equal(found->second)) << where << " " << parameter->name();
    }
  }
}

class EverySchedule : public ::testing::TestWithParam<const char*> {
 protected:
  static schedule::Schedule table() {
    const std::string name = GetParam();
    // interleaved and dualpipe-v want multiples of the ranks, or twice as many.
    return schedule::make_schedule(name, kRanks, chunks_of(name), micro_batches());
  }
  static int micro_batches() { return 2 * kRanks; }
};

TEST_P(EverySchedule, LetsAStageGoWhenItsGradientsAreComplete) {
  const auto batch = step_of(micro_batches());
  const Reference reference = reference_with([](nn::Model&) {}, batch);
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    const auto name = fmt::format("{} rank {}", GetParam(), group.rank());
    const auto schedule = table();
    std::vector<int> finishing;
    std::vector<int> gone;
    int begun = 0;
    const Pipeline* pipeline = nullptr;
    PipelineEvents events;
    events.begin = [&] { ++begun; };
    events.finishing = [&](int stage) {
      finishing.push_back(stage);
      EXPECT_EQ(gone.size() + 1, finishing.size()) << name;
    };
    events.let_go = [&](int number) {
      gone.push_back(number);
      EXPECT_EQ(gone, finishing) << name;
      for (const Stage& stage : pipeline->stages().local) {
        if (stage.number != number) continue;
        for (const auto& parameter : stage.parameters()) {
          EXPECT_TRUE(parameter->gradient().equal(reference.gradients.at(parameter->name())))
              << name << " " << parameter->name();
        }
      }
    };
    Rank rank(spec(), schedule, even_stages(8, schedule.stages()), group, events);
    pipeline = rank.pipeline.get();
    rank.pipeline->run(batch);
    EXPECT_EQ(begun, 1);
    std::multiset<int> held;
    for (const Stage& stage : rank.pipeline->stages().local) held.insert(stage.number);
    EXPECT_EQ(std::multiset<int>(gone.begin(), gone.end()), held) << name;
  });
}

// A listener that sends the gradient when its parameter is ready must find all of it: the last call
// of a step comes after the last product, and none while one is put off.
TEST_P(EverySchedule, AParameterIsReadyAfterItsLastProductAndNotBefore) {
  const auto batch = step_of(micro_batches());
  const Reference reference = reference_with([](nn::Model&) {}, batch);
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    const auto schedule = table();
    Gradients at_last_call;
    Rank rank(spec(), schedule, even_stages(8, schedule.stages()), group);
    for (const auto& parameter : rank.model->parameters()) {
      parameter->on_gradient_ready(
          [&](nn::Parameter& ready) { at_last_call[ready.name()] = ready.gradient().clone(); });
    }
    rank.pipeline->run(batch);
    for (const auto& parameter : rank.model->parameters()) {
      ASSERT_TRUE(at_last_call.contains(parameter->name())) << parameter->name();
      EXPECT_TRUE(at_last_call[parameter->name()].equal(reference.gradients.at(parameter->name())))
          << GetParam() << " " << parameter->name();
    }
  });
}

/// Adds a loss of its own input to what the head computes, as a router does.
void add_balance_loss(nn::Module& module) {
  module.on_pre_forward([](nn::Module&, const at::Tensor& x, const nn::Context& context) {
    context.extra_losses->add(x.square().mean() * 0.01);
    return at::Tensor();
  });
}

TEST_P(EverySchedule, LossesOfLayersAreRootsOfTheirOwnStage) {
  const auto batch = step_of(micro_batches());
  Reference reference;
  double extra_sum = 0;
  {
    const auto model = nn::make_model(spec());
    fill(*model);
    for (const char* block : {"blocks.0", "blocks.4"}) add_balance_loss(*model->find_module(block));
    for (const MicroBatch& one : batch) {
      nn::LossSink extra;
      nn::Context context = one.context;
      context.extra_losses = &extra;
      at::Tensor loss = (*model)(one.input, context);
      reference.loss += loss.item<double>();
      for (const at::Tensor& more : extra.losses()) {
        extra_sum += more.item<double>();
        loss = loss + more;
      }
      loss.backward();
    }
    reference.gradients = gradients_of(*model);
  }
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    const auto schedule = table();
    double told = 0;
    Rank rank(spec(), schedule, even_stages(8, schedule.stages()), group,
              {.loss = [&](int, double loss) { told += loss; }});
    for (const char* block : {"blocks.0", "blocks.4"})
      if (nn::Module* found = rank.model->find_module(block)) add_balance_loss(*found);
    const double part = rank.pipeline->run(batch);
    EXPECT_NEAR(part, told, 1e-12);
    // Of all ranks together: the same float32 losses, added in double in another order.
    EXPECT_NEAR(group.sum(part), reference.loss + extra_sum, 1e-12);
    expect_all_equal(*rank.model, reference.gradients, GetParam());
  });
}

TEST_P(EverySchedule, StagesWithNothingToTrain) {
  const auto batch = step_of(micro_batches());
  // The first stage; one in the middle; all but the head.
  const std::vector<std::vector<const char*>> cases{
      {"embedding", "blocks.0", "blocks.1"},
      {"blocks.2", "blocks.3"},
      {"embedding", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4", "blocks.5"}};
  for (const auto& frozen : cases) {
    const auto freeze = [&](nn::Model& model) {
      for (const char* unit : frozen) {
        if (nn::Module* found = model.find_module(unit))
          for (const auto& parameter : found->parameters()) parameter->set_requires_grad(false);
      }
    };
    const Reference reference = reference_with(freeze, batch);
    comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
      const auto schedule = table();
      Rank rank(spec(), schedule, even_stages(8, schedule.stages()), group);
      freeze(*rank.model);
      const double loss = group.sum(rank.pipeline->run(batch));
      EXPECT_EQ(loss, reference.loss);
      expect_all_equal(*rank.model, reference.gradients,
                       fmt::format("{} without {} units", GetParam(), frozen.size()));
    });
  }
}

TEST_P(EverySchedule, TheGradientOfTheLossScalesEverything) {
  auto batch = step_of(micro_batches());
  Reference reference = reference_with([](nn::Model&) {}, batch);
  // A power of two: exact, unless something underflows.
  for (auto& [name, gradient] : reference.gradients) gradient.mul_(4);
  for (MicroBatch& one : batch) one.loss_gradient = 4;
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    const auto schedule = table();
    Rank rank(spec(), schedule, even_stages(8, schedule.stages()), group);
    EXPECT_EQ(group.sum(rank.pipeline->run(batch)), reference.loss);
    expect_all_equal(*rank.model, reference.gradients, GetParam());
  });
}

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule,
                         ::testing::Values("in_turn", "gpipe", "1f1b", "interleaved", "zb-h1",
                                           "zb-h2", "zb-v", "dualpipe-v"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Plain gradient descent: a factor or a missing part of a gradient shows in the weights, and copies
// that drift apart at once.
TEST(TiedWeights, CopiesStayEqualAndTheNormIsThatOfOneRank) {
  constexpr int kSteps = 20;
  const auto tied = tiny_spec("gpt2-tiny", true);
  const auto model = nn::make_model(tied);
  fill(*model);
  std::vector<double> norms;
  const auto squares = [](const nn::Parameter& parameter) {
    return parameter.gradient().to(at::kDouble).square().sum().item<double>();
  };
  const auto update = [](const nn::Model& of) {
    for (const auto& parameter : of.parameters())
      parameter->tensor().detach().sub_(parameter->gradient(), 0.1);
  };
  for (int step = 0; step < kSteps; ++step) {
    for (const MicroBatch& one : step_of(kMicroBatches, step))
      (*model)(one.input, one.context).backward();
    double sum = 0;
    for (const auto& parameter : model->parameters()) sum += squares(*parameter);
    norms.push_back(sum);
    update(*model);
    model->clear_gradients();
  }
  for (const char* name : {"1f1b", "zb-v"}) {
    comm::run_on_threads(threads(2), [&](const comm::Group& group) {
      const auto table = schedule::make_schedule(name, 2, chunks_of(name), kMicroBatches);
      Rank rank(tied, table, even_stages(8, table.stages()), group);
      for (int step = 0; step < kSteps; ++step) {
        rank.pipeline->run(step_of(kMicroBatches, step));
        rank.reduce_ties();
        double sum = 0;
        for (const auto& parameter : rank.model->parameters())
          if (rank.tied->holders(*parameter).rank() == 0) sum += squares(*parameter);
        // Sums in another order, in float32, and what follows from them in later steps.
        EXPECT_NEAR(group.sum(sum), norms[step], 1e-5 * norms[step]) << name << " step " << step;
        update(*rank.model);
        rank.model->clear_gradients();
      }
      const auto embedding = rank.model->find_parameter("embedding.tokens.weight");
      const int holders = chunks_of(name) == 2 ? 1 : 2;
      if (embedding) {
        EXPECT_EQ(rank.tied->holders(*embedding).size(), holders);
        const at::Tensor values = embedding->tensor().detach().clone();
        const comm::Group pair = rank.tied->holders(*embedding);
        pair.broadcast(values, 0);
        EXPECT_TRUE(values.equal(embedding->tensor())) << name << ": the copies differ";
        const at::Tensor expected = model->find_parameter("embedding.tokens.weight")->tensor();
        EXPECT_LE((values - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
      }
    });
  }
}

}  // namespace
}  // namespace shoal::parallel::events_test
