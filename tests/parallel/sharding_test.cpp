#include "shoal/parallel/shard/sharding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "shoal/comm/world.h"
#include "shoal/forecast/gathers.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "tests/parallel/branches.h"
#include "tests/parallel/tiny_training.h"

namespace shoal::parallel::sharding_test {
namespace {

using Copies = ShardingOptions::Copies;
using By = Wrapping::By;
constexpr Copies kCopies[] = {Copies::kShared, Copies::kCopied};
constexpr ShardStage kStages[] = {ShardStage::kOptimizer, ShardStage::kGradients,
                                  ShardStage::kParameters};

using Maker = std::unique_ptr<Sharding> (*)(nn::Module&, const mesh::Mesh&, const ShardingOptions&);

Result sharded_on(
    const plan::Degrees& degrees, const ShardingOptions& options, int micro_batches,
    Maker make = sharded_data_parallel, const Preparation& prepare = [](nn::Model&) {}) {
  Result kept;
  comm::run_on_threads({.size = static_cast<int>(degrees.ranks()),
                        .arena = false,
                        .timeout = std::chrono::seconds(60)},
                       [&](const comm::Group& world) {
                         const auto model = nn::make_model(tiny());
                         prepare(*model);
                         const auto sharding = make(*model, mesh::Mesh(world, degrees), options);
                         sharding->reset_parameters(Key(1));
                         Result result = train(*model, *sharding, world, micro_batches);
                         sharding->unshard();
                         keep_weights(*model, result);
                         sharding->reshard();
                         world.barrier();
                         if (world.rank() == 0) kept = std::move(result);
                         world.barrier();
                       });
  return kept;
}

Result sharded(
    int replicas, int shards, const ShardingOptions& options, int micro_batches,
    Maker make = sharded_data_parallel, const Preparation& prepare = [](nn::Model&) {}) {
  return sharded_on({.dp_replicate = replicas, .dp_shard = shards}, options, micro_batches, make,
                    prepare);
}

void expect_same(const Result& a, const Result& b, const std::string& what, double bound = 1e-5) {
  EXPECT_EQ(difference(a, b, bound), "") << what;
}

TEST(Sharding, EveryStageAndPlacementTrainsAsOneRank) {
  const Result reference = alone();
  EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.5)
      << "nothing was learnt: the comparison would show nothing";
  for (const ShardStage stage : kStages) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const Copies copies : kCopies) {
        expect_same(sharded(1, ranks, {.stage = stage, .copies = copies}, 1 + ranks % 2), reference,
                    fmt::format("stage {}, {} ranks, copies {}", static_cast<int>(stage), ranks,
                                static_cast<int>(copies)));
      }
    }
    expect_same(sharded(2, 2, {.stage = stage, .copies = Copies::kCopied}, 3), reference,
                "hybrid, copied");
    expect_same(sharded(2, 2, {.stage = stage}, 1), reference, "hybrid, shared");
    expect_same(sharded(1, 3, {.stage = stage}, 2, sharding_by_hand), reference, "by hand");
  }
}

// Axes of which no technique makes use: context and tensor ranks hold what data ranks hold, and
// here see other samples. Parameters shard over all of them but the copies.
TEST(Sharding, IdleAxesTrainAsOneRank) {
  const Result reference = alone();
  for (const plan::Degrees& degrees :
       {plan::Degrees{.dp_shard = 3, .cp = 2, .tp = 2}, plan::Degrees{.cp = 2, .tp = 2},
        plan::Degrees{.dp_replicate = 2, .cp = 2}, plan::Degrees{.dp_replicate = 2, .tp = 3},
        plan::Degrees{.dp_replicate = 3, .dp_shard = 2, .tp = 2}}) {
    for (const ShardStage stage : kStages) {
      for (const Copies copies : kCopies) {
        const std::string what =
            fmt::format("stage {}, {} ranks, cp {}, tp {}, copies {}", static_cast<int>(stage),
                        degrees.ranks(), degrees.cp, degrees.tp, static_cast<int>(copies));
        expect_same(sharded_on(degrees, {.stage = stage, .copies = copies}, 1), reference, what);
      }
    }
    expect_same(sharded_on(degrees, {}, 1, sharding_by_hand), reference, "by hand");
  }
}

TEST(Sharding, EveryWrappingTrainsAsOneRank) {
  const Result reference = alone();
  for (const Copies copies : kCopies) {
    for (const Wrapping& wrapping :
         {Wrapping{.by = By::kSize, .parameters = 2000},
          Wrapping{.by = By::kName, .names = {"blocks.*.mlp"}},
          Wrapping{.by = By::kName, .names = {"blocks.1", "head"}}, Wrapping{.by = By::kWhole}}) {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const bool reshard : {true, false}) {
          if (!reshard && ranks != 2) continue;
          const ShardingOptions options{.wrapping = wrapping,
                                        .ahead = reshard ? 2 : 0,
                                        .reshard_after_forward = reshard,
                                        .copies = copies};
          expect_same(sharded(1, ranks, options, ranks == 4 ? 1 : 2), reference,
                      fmt::format("by {}, {} ranks, reshard {}", static_cast<int>(wrapping.by),
                                  ranks, reshard));
        }
      }
    }
  }
  expect_same(sharded(1, 2, {.stage = ShardStage::kGradients, .reduce_every_micro_batch = true}, 3),
              reference, "reduced every micro-batch");
}

TEST(Sharding, RecomputedBlocksTrainAsOneRank) {
  const Result reference = alone();
  for (const Copies copies : kCopies) {
    for (const auto& ways : {std::vector{model::Keep::kInput, model::Keep::kInput},
                             {model::Keep::kProducts, model::Keep::kEverything}}) {
      for (const bool reshard : {true, false}) {
        expect_same(sharded(1, 2, {.reshard_after_forward = reshard, .copies = copies}, 2,
                            sharded_data_parallel,
                            [&](nn::Model& model) { checkpoint_activations(model, ways); }),
                    reference,
                    fmt::format("copies {}, first block keeps {}, reshard {}",
                                static_cast<int>(copies), static_cast<int>(ways[0]), reshard));
      }
    }
  }
}

// Units that are frozen as a whole (the first block), in part (the norms of the second), and the
// tied embedding.
TEST(Sharding, FrozenParametersStayAndTheOthersTrainAsOnOneRank) {
  const auto frozen = [](const std::string& name) {
    return name.starts_with("blocks.0.") ||
           (name.starts_with("blocks.1.") && name.find("norm") != std::string::npos) ||
           name.starts_with("embedding");
  };
  int kept = 0;
  const Preparation freeze = [&](nn::Model& model) {
    for (const auto& parameter : model.parameters())
      if (frozen(parameter->name())) parameter->set_requires_grad(false);
  };
  const Result reference = alone(freeze);
  const auto fresh = nn::make_model(tiny());
  fresh->materialize();
  fresh->reset_parameters(Key(1));
  const auto parameters = fresh->parameters();
  for (std::size_t i = 0; i < reference.weights.size(); ++i) {
    const auto& parameter = parameters[i];
    EXPECT_EQ(reference.weights[i].equal(parameter->tensor()), frozen(parameter->name()))
        << parameter->name();
    kept += frozen(parameter->name());
  }
  EXPECT_GE(kept, 15) << "too little is frozen to show anything";
  for (const ShardStage stage : kStages) {
    for (const Copies copies : kCopies) {
      expect_same(
          sharded(1, 3, {.stage = stage, .copies = copies}, 2, sharded_data_parallel, freeze),
          reference,
          fmt::format("stage {}, copies {}", static_cast<int>(stage), static_cast<int>(copies)));
    }
    expect_same(sharded(1, 2, {.stage = stage}, 1, sharding_by_hand, freeze), reference, "by hand");
  }
}

/// The gradients of `branches` weights on `ranks` ranks, of which `used(rank, step)` says what they
/// use: each rank's part beside `expected(step)`, where an undefined tensor stands for a parameter
/// that no rank uses.
void expect_gradients(int branches, int ranks,
                      const std::function<std::vector<std::size_t>(int, int)>& used,
                      const std::function<std::vector<at::Tensor>(int)>& expected) {
  for (const auto make : {sharded_data_parallel, sharding_by_hand}) {
    for (const ShardStage stage : kStages) {
      for (const Copies copies : kCopies) {
        comm::run_on_threads(
            {.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
            [&](const comm::Group& world) {
              Branches model(branches);
              const auto sharding =
                  make(model, mesh::Mesh(world, {.dp_replicate = 1, .dp_shard = ranks}),
                       {.stage = stage, .copies = copies});
              sharding->reset_parameters(Key(1));
              std::int64_t held = 0;
              for (int step = 0; step < 4; ++step) {
                model.used = used(world.rank(), step);
                sharding->begin(0, 1);
                model(at::arange(3, at::kFloat) + world.rank(), nn::Context()).backward();
                sharding->finish();
                const std::vector<at::Tensor> gradients = sharding->gradients();
                const std::vector<at::Tensor> whole = expected(step);
                for (std::size_t i = 0; i < gradients.size(); ++i) {
                  const OwnedRange& range = sharding->owned()[i];
                  const std::string what = fmt::format(
                      "{} of rank {}, stage {}, copies {}, step {}", range.parameter->name(),
                      world.rank(), static_cast<int>(stage), static_cast<int>(copies), step);
                  held += range.end - range.begin;
                  ASSERT_EQ(gradients[i].defined(), whole[i].defined()) << what;
                  if (whole[i].defined()) {
                    EXPECT_TRUE(gradients[i].equal(whole[i].slice(0, range.begin, range.end)))
                        << what;
                  }
                }
                sharding->begin_update();
                sharding->end_update();
                model.clear_gradients();
              }
              const at::Tensor all = at::empty({1}, at::kLong).fill_(held);
              world.all_reduce(all);
              EXPECT_EQ(all.item<std::int64_t>(), 4 * 3 * branches)
                  << "every element belongs to one rank";
            });
      }
    }
  }
}

// Rank r uses branch 0 and one of 1 to 3, which differs between ranks and steps, and the order too;
// nobody uses branch 4.
TEST(Sharding, ParametersThatSomeRanksDoNotUse) {
  const auto branch = [](int rank, int step) {
    return static_cast<std::size_t>((rank + step) % 3 + 1);
  };
  expect_gradients(
      5, 3,
      [&](int rank, int step) {
        return rank == 1 ? std::vector<std::size_t>{0, branch(rank, step)}
                         : std::vector<std::size_t>{branch(rank, step), 0};
      },
      [&](int step) {
        std::vector<at::Tensor> whole(5);
        whole[0] = 3 * at::arange(3, at::kFloat) + 3;
        for (int rank = 0; rank < 3; ++rank)
          whole[branch(rank, step)] = at::arange(3, at::kFloat) + rank;
        return whole;
      });
}

// What `shoal plan --gathers` prints is what runs.
TEST(Sharding, ThePlannersTableIsTheOneThatRuns) {
  for (const bool tied : {true, false}) {
    for (const int ahead : {0, 1, 3}) {
      model::ModelSpec spec = tiny();
      spec.layers = 4, spec.tied_embeddings = tied;
      plan::Training training{.zero_stage = 3, .micro_batch = 1};
      training.degrees.dp_shard = 2, training.gather_ahead = ahead,
      training.reshard_after_forward = ahead != 3;
      plan::Cluster apart;
      apart.runtime = plan::Runtime::kShoal, apart.hosts = 2, apart.devices_per_host = 1;
      const auto planned = forecast::gather_table(spec, training, apart);
      comm::run_on_threads(
          {.size = 2, .arena = false, .timeout = std::chrono::seconds(60)},
          [&](const comm::Group& world) {
            const auto model = nn::make_model(spec);
            const ShardingOptions options{
                .ahead = ahead, .reshard_after_forward = ahead != 3, .copies = Copies::kCopied};
            EXPECT_EQ(
                sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = 2}), options)->table(),
                planned);
          });
      apart.hosts = 1, apart.devices_per_host = 2;
      EXPECT_TRUE(forecast::gather_table(spec, training, apart).empty())
          << "parameters are read in place";
    }
  }
}

/// A sum of branches, each a unit of its own, of which each call uses some.
class Units final : public nn::Module {
 public:
  explicit Units(int count) {
    for (int i = 0; i < count; ++i) {
      branches_.push_back(child<Branches>("b" + std::to_string(i), 1));
      branches_.back()->used = {0};
    }
  }
  std::vector<std::size_t> used;

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    at::Tensor sum = at::empty({}, at::kFloat).zero_();
    for (const std::size_t i : used) sum = sum + (*branches_[i])(x, context);
    return sum;
  }

 private:
  std::vector<std::shared_ptr<Branches>> branches_;
};

// The other rank, which may have nothing to send before its backward pass is over, is what a rank
// with all units waits for.
TEST(Sharding, ARankThatWaitsForRoomIsNotWaitedFor) {
  for (const int replicas : {1, 2}) {
    comm::run_on_threads(
        {.size = 2 * replicas, .arena = false, .timeout = std::chrono::seconds(60)},
        [&](const comm::Group& world) {
          Units model(8);
          const auto sharding = sharded_data_parallel(
              model, mesh::Mesh(world, {.dp_replicate = replicas, .dp_shard = 2}),
              {.in_flight = 1, .copies = Copies::kShared});
          sharding->reset_parameters(Key(1));
          for (int step = 0; step < 3; ++step) {
            // Alone the first unit, which leaves last; alone the last; none of the second.
            model.used = world.rank() != step % world.size()
                             ? std::vector<std::size_t>{7, 6, 5, 4, 3, 2, 0}
                         : step % 2 == 0 ? std::vector<std::size_t>{0}
                                         : std::vector<std::size_t>{7};
            sharding->begin(0, 1);
            model(at::arange(3, at::kFloat) + 1, nn::Context()).backward();
            sharding->finish();
            const auto gradients = sharding->gradients();
            for (std::size_t i = 0; i < gradients.size(); ++i) {
              const OwnedRange& range = sharding->owned()[i];
              const std::size_t alone = step % 2 == 0 ? 0 : 7;
              const int users = i == 1 ? 0 : world.size() - 1 + (i == alone ? 1 : 0);
              ASSERT_EQ(gradients[i].defined(), users > 0) << i;
              if (users > 0) {
                EXPECT_TRUE(gradients[i].equal(
                    (users * (at::arange(3, at::kFloat) + 1)).slice(0, range.begin, range.end)))
                    << i;
              }
            }
            sharding->begin_update();
            sharding->end_update();
            model.clear_gradients();
          }
        });
  }
}

/// Of `Units` on two ranks that each have a copy: what each rank runs, in order; the gradients are
/// checked where `expected` says how often a unit is used in all. Returns the errors of the ranks
/// that threw, a line each, empty if none did.
std::string train_units(const std::vector<std::vector<std::size_t>>& used,
                        std::vector<int> expected = {}) {
  const auto body = [&](const comm::Group& world) {
    Units model(4);
    const auto sharding = sharded_data_parallel(model, mesh::Mesh(world, {.dp_shard = 2}),
                                                {.copies = Copies::kCopied});
    sharding->reset_parameters(Key(1));
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        sharding->begin(micro, 2);
        model.used = used[static_cast<std::size_t>((world.rank() + step) % 2)];
        model(at::arange(3, at::kFloat) + 1, nn::Context()).backward();
      }
      sharding->finish();
      const auto gradients = sharding->gradients();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const OwnedRange& range = sharding->owned()[i];
        ASSERT_EQ(gradients[i].defined(), expected[i] > 0) << i;
        if (expected[i] > 0) {
          EXPECT_TRUE(gradients[i].equal(
              (2 * expected[i] * (at::arange(3, at::kFloat) + 1)).slice(0, range.begin, range.end)))
              << i;
        }
      }
      sharding->begin_update();
      sharding->end_update();
      model.clear_gradients();
    }
  };
  std::mutex mutex;
  std::string words;
  try {
    comm::run_on_threads({.size = 2, .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& world) {
                           try {
                             body(world);
                           } catch (const Error& error) {
                             const std::lock_guard lock(mutex);
                             words += std::string(error.what()) + "\n";
                             throw;
                           }
                         });
  } catch (const Error&) {  // one of them
  }
  return words;
}

// Units that one rank leaves out, in the middle, at the beginning and at the end, are gathered
// there too, because the other waits for them.
TEST(Sharding, AModuleThatOneRankLeavesOutKeepsTheOthersInStep) {
  EXPECT_EQ(train_units({{0, 1, 2, 3}, {0, 1, 2, 3}}, {2, 2, 2, 2}), "");
  EXPECT_EQ(train_units({{0, 1, 2, 3}, {0, 3}}, {2, 1, 1, 2}), "");
  EXPECT_EQ(train_units({{0, 1}, {2, 3}}, {1, 1, 1, 1}), "");
  EXPECT_EQ(train_units({{0}, {0, 1, 3}}, {2, 1, 0, 1}), "");
}

// Units of one size: without their labels one would be taken for the other.
TEST(Sharding, AModuleOutOfTurnOnOneRankIsAnErrorThatNamesIt) {
  const std::string words = train_units({{0, 1, 2, 3}, {0, 2, 1, 3}});
  EXPECT_NE(words.find("[sharding] the parameters of b"), std::string::npos) << words;
  EXPECT_NE(words.find("runs out of turn"), std::string::npos) << words;
  // On both it is none.
  EXPECT_EQ(train_units({{0, 2, 1, 3}, {0, 2, 1, 3}}, {2, 2, 2, 2}), "");
}

// What autograd's versions do not see.
TEST(Sharding, BackwardThroughParametersThatWereUpdatedIsRefused) {
  for (const Copies copies : kCopies) {
    comm::run_on_threads(
        {.size = 2, .arena = false, .timeout = std::chrono::seconds(60)},
        [&](const comm::Group& world) {
          const auto model = nn::make_model(tiny());
          const auto sharding =
              sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = 2}),
                                    {.stage = ShardStage::kGradients, .copies = copies});
          sharding->reset_parameters(Key(1));
          nn::Context context;
          const at::Tensor tokens = at::arange(16, at::kLong).view({1, 16});
          context.labels = tokens;
          sharding->begin(0, 1);
          const at::Tensor loss = (*model)(tokens, context);
          sharding->begin_update();
          sharding->end_update();
          try {
            loss.backward();
            ADD_FAILURE() << "it ran";
          } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("between its forward and its backward pass"),
                      std::string::npos)
                << error.what();
          }
        });
  }
}

/// A parameter rounded to bf16 for forward and backward, and what it was.
Result alone_rounded() {
  const auto model = nn::make_model(tiny());
  model->materialize();
  model->reset_parameters(Key(1));
  class Rounding final : public GradientReduction {
   public:
    Rounding(nn::Module& model) : plain_(reduce_after_backward(model, {})), model_(model) {
      round();
    }
    void begin(std::int64_t index, std::int64_t count) override { plain_->begin(index, count); }
    void finish() override { plain_->finish(); }
    const std::vector<OwnedRange>& owned() const override { return plain_->owned(); }
    std::vector<at::Tensor> gradients() const override { return plain_->gradients(); }
    void begin_update() override {
      for (std::size_t i = 0; i < exact_.size(); ++i)
        model_.parameters()[i]->tensor().detach().copy_(exact_[i]);
    }
    void end_update() override { round(); }

   private:
    void round() {
      exact_.clear();
      for (const auto& parameter : model_.parameters()) {
        const at::Tensor values = parameter->tensor().detach();
        exact_.push_back(values.clone());
        values.copy_(values.to(at::kBFloat16));
      }
    }
    std::unique_ptr<GradientReduction> plain_;
    nn::Module& model_;
    std::vector<at::Tensor> exact_;
  } reduction(*model);
  Result result = train(*model, reduction, {}, 1);
  keep_weights(*model, result);
  return result;
}

// The reference rounds by hand what one rank computes with. Sums in another order round a weight to
// its other neighbour now and then: 1e-3 after 20 steps, as of other 16-bit weights; a neighbour is
// 2^-8 away.
TEST(Sharding, ParametersThatTravelInSixteenBitsAreRoundedForAll) {
  const Result reference = alone_rounded();
  const Result exact = alone();
  EXPECT_NE(difference(reference, exact), "") << "rounding shows in nothing";
  EXPECT_EQ(difference(reference, exact, 3e-2), "");
  for (const ShardStage stage : kStages) {
    for (const int ranks : {2, 3}) {
      const ShardingOptions options{
          .stage = stage, .copies = Copies::kCopied, .transfer_type = at::kBFloat16};
      const Result result = sharded(1, ranks, options, 1);
      EXPECT_NEAR(result.losses[0], reference.losses[0], 1e-6 * reference.losses[0]);
      expect_same(result, reference,
                  fmt::format("stage {}, {} ranks", static_cast<int>(stage), ranks), 1e-3);
      // Where all read one copy nothing travels.
      if (ranks == 2) {
        expect_same(
            sharded(1, ranks,
                    {.stage = stage, .copies = Copies::kShared, .transfer_type = at::kBFloat16}, 1),
            exact, "shared");
      }
    }
  }
}

TEST(Sharding, MoreRanksThanElements) {
  expect_gradients(
      1, 5, [](int, int) { return std::vector<std::size_t>{0}; },
      [](int) { return std::vector<at::Tensor>{5 * at::arange(3, at::kFloat) + 10}; });
}

TEST(Sharding, TheTableGathersAheadAndReleases) {
  const schedule::ShardPlan plan{.reads = {{0}, {1}, {2}, {3, 0}}, .parent = {-1, -1, -1, -1}};
  const auto table = schedule::shard_table(plan);
  EXPECT_EQ(
      schedule::to_string(table),
      "gather 0, gather 1, forward 0, gather 2, forward 1, release 1, gather 3, forward 2, release "
      "2, forward 3, gather 2, backward 3, "
      "release 3, gather 1, backward 2, release 2, backward 1, release 1, backward 0, release 0");
  // Nothing before module 2 is trained: backward ends with it. A module around it is entered.
  EXPECT_EQ(schedule::to_string(schedule::shard_table({.reads = {{0}, {1}, {2}, {3}},
                                                       .parent = {-1, -1, -1, -1},
                                                       .ahead = 0,
                                                       .first_trained = 2})),
            "gather 0, forward 0, release 0, gather 1, forward 1, release 1, gather 2, forward 2, "
            "release 2, gather 3, forward 3, backward 3, release 3, "
            "gather 2, backward 2, release 2");
  EXPECT_EQ(schedule::to_string(schedule::shard_table(
                {.reads = {{}, {0}, {1}}, .parent = {-1, 0, 0}, .ahead = 0, .first_trained = 2})),
            "forward 0, gather 0, forward 1, release 0, gather 1, forward 2, backward 0, backward "
            "2, release 1");
}

}  // namespace
}  // namespace shoal::parallel::sharding_test
