#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "shoal/comm/world.h"
#include "shoal/model/model_spec.h"
#include "shoal/ops/linear.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "tests/parallel/branches.h"

namespace shoal::parallel::data_parallel_test {
namespace {

using Strategy = DataParallelOptions::Strategy;

model::ModelSpec tiny() {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  spec.layers = 2, spec.hidden = 64, spec.ffn = 256, spec.head_size = 16, spec.sequence = 32;
  return spec;
}

/// Of matrices and of all gradients.
struct Types {
  at::ScalarType compute = at::kFloat, gradient = at::kFloat;
};

std::shared_ptr<nn::Model> made(const model::ModelSpec& spec, std::uint64_t seed = 1,
                                const Types& types = {}) {
  auto model = nn::make_model(spec);
  for (const auto& p : model->parameters())
    p->set_types(p->global_shape().size() > 1 ? types.compute : at::kFloat, types.gradient);
  model->materialize();
  model->reset_parameters(Key(seed));
  return model;
}

nn::Context context_of(std::int64_t rank, std::int64_t step, std::int64_t micro,
                       at::Tensor& tokens) {
  tokens =
      (at::arange(33, at::kLong) * (7 + rank) + 31 * step + 5 * micro).remainder(256).view({1, 33});
  nn::Context context;
  context.key = Key(3).child(static_cast<std::uint64_t>(step));
  context.labels = tokens.slice(1, 1, 33).contiguous();
  context.loss_scale = 1.0 / (32 * 3 * 2);
  tokens = tokens.slice(1, 0, 32).contiguous();
  return context;
}

/// Three steps of two micro-batches with plain gradient descent; the parameters after them.
std::vector<at::Tensor> train(GradientReduction& reduction, nn::Model& model, int rank) {
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      reduction.begin(micro, 2);
      at::Tensor tokens;
      const nn::Context context = context_of(rank, step, micro, tokens);
      model(tokens, context).backward();
    }
    reduction.finish();
    for (const auto& p : model.parameters()) p->tensor().detach().add_(p->gradient(), -0.1);
    model.clear_gradients();
  }
  std::vector<at::Tensor> result;
  for (const auto& p : model.parameters()) result.push_back(p->tensor().detach().clone());
  return result;
}

// Bitwise: every strategy adds the same numbers in rank order, and 16-bit sums are rounded once.
class DataParallelTypes : public ::testing::TestWithParam<Types> {};

TEST_P(DataParallelTypes, EveryStrategyGivesTheBitsOfThePlainOne) {
  comm::run_on_threads(
      {.size = 3, .memory_limit_bytes = std::size_t{1} << 31, .timeout = std::chrono::seconds(60)},
      [](const comm::Group& group) {
        const auto spec = tiny();
        const auto plain_model = made(spec, 1, GetParam());
        const auto plain =
            train(*reduce_after_backward(*plain_model, group), *plain_model, group.rank());
        for (const DataParallelOptions& options :
             {DataParallelOptions{}, DataParallelOptions{.strategy = Strategy::kInPlace},
              DataParallelOptions{.bucket_bytes = 1, .strategy = Strategy::kBuckets},
              DataParallelOptions{.bucket_bytes = 100000, .strategy = Strategy::kBuckets},
              DataParallelOptions{.strategy = Strategy::kBuckets}}) {
          const auto model = made(spec, 1, GetParam());
          const auto reduction = data_parallel(*model, group, options);
          const auto result = train(*reduction, *model, group.rank());
          ASSERT_EQ(result.size(), plain.size());
          for (std::size_t i = 0; i < plain.size(); ++i) {
            EXPECT_TRUE(result[i].equal(plain[i]))
                << model->parameters()[i]->name() << " bucket=" << options.bucket_bytes;
          }
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Precision, DataParallelTypes,
                         ::testing::Values(Types{}, Types{at::kBFloat16, at::kFloat},
                                           Types{at::kBFloat16, at::kBFloat16},
                                           Types{at::kFloat, at::kBFloat16},
                                           Types{at::kHalf, at::kFloat}));

// Rank r uses branch 0 and one of 1 to 3; branch 4 is used by nobody.
TEST(DataParallel, ParametersThatSomeRanksDoNotUse) {
  for (const Strategy strategy : {Strategy::kInPlace, Strategy::kBuckets}) {
    comm::run_on_threads(
        {.size = 3,
         .memory_limit_bytes = std::size_t{1} << 31,
         .timeout = std::chrono::seconds(60)},
        [&](const comm::Group& group) {
          Branches model(5);
          model.materialize();
          model.reset_parameters(Key(1));
          const auto reduction =
              data_parallel(model, group, {.bucket_bytes = 24, .strategy = strategy});
          for (int step = 0; step < 4; ++step) {
            // The order of use differs between ranks and steps too.
            model.used = {static_cast<std::size_t>((group.rank() + step) % 3 + 1), 0};
            if (group.rank() == 1) std::swap(model.used[0], model.used[1]);
            reduction->begin(0, 1);
            model(at::arange(3, at::kFloat) + group.rank(), nn::Context()).backward();
            reduction->finish();
            const auto parameters = model.parameters();
            EXPECT_TRUE(parameters[0]->gradient().equal(3 * at::arange(3, at::kFloat) + 3));
            for (int branch = 1; branch <= 3; ++branch) {
              const int user = (branch - 1 - step % 3 + 3) % 3;
              EXPECT_TRUE(parameters[branch]->gradient().equal(at::arange(3, at::kFloat) + user))
                  << "branch " << branch << " step " << step;
            }
            EXPECT_FALSE(parameters[4]->gradient().defined())
                << "a parameter that nobody uses keeps no gradient";
            model.clear_gradients();
          }
        });
  }
}

// A sum that waited for the end of the backward pass would have the same bits, and hide nothing.
TEST(DataParallel, GradientsLeaveWhileBackwardRuns) {
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 31, .timeout = std::chrono::seconds(60)},
      [](const comm::Group& group) {
        Branches model(4);
        model.materialize();
        model.reset_parameters(Key(1));
        model.used = {0, 1, 2, 3};
        const auto reduction =
            data_parallel(model, group, {.bucket_bytes = 1, .strategy = Strategy::kBuckets});
        for (int step = 0; step < 3; ++step) {
          const double before = group.bytes_sent();
          reduction->begin(0, 1);
          model(at::arange(3, at::kFloat), nn::Context()).backward();
          // Of two ranks each sends as much as a gradient has: four of three floats.
          EXPECT_EQ(group.bytes_sent() - before, 4 * 3 * 4) << "step " << step;
          reduction->finish();
          model.clear_gradients();
        }
      });
}

TEST(DataParallel, EveryRankHearsOfDifferentStartingValues) {
  for (const int changed : {0, 1, 2}) {
    comm::run_on_threads({.size = 3,
                          .memory_limit_bytes = std::size_t{1} << 31,
                          .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& group) {
                           Branches model(1);
                           model.materialize();
                           model.reset_parameters(Key(1));
                           if (group.rank() == changed)
                             model.parameters()[0]->tensor().detach().fill_(2);
                           EXPECT_THROW(data_parallel(model, group), Error) << group.rank();
                         });
  }
}

TEST(DataParallel, DifferentStartingValuesAreNamed) {
  try {
    comm::run_on_threads(
        {.size = 2,
         .memory_limit_bytes = std::size_t{1} << 31,
         .timeout = std::chrono::seconds(60)},
        [](const comm::Group& group) {
          const auto model = made(tiny());
          if (group.rank() == 1)
            model->find_parameter("blocks.1.mlp.up.bias")->tensor().detach().add_(1e-8);
          data_parallel(*model, group);
        });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_NE(std::string(error.what()).find("blocks.1.mlp.up.bias"), std::string::npos)
        << error.what();
  }
}

// Three elements of 16 bits: one word of the checksum and two bytes behind it.
TEST(DataParallel, EveryByteOfTheStartingValuesCounts) {
  for (const std::int64_t element : {0, 1, 2}) {
    EXPECT_THROW(
        comm::run_on_threads({.size = 2,
                              .memory_limit_bytes = std::size_t{1} << 31,
                              .timeout = std::chrono::seconds(60)},
                             [&](const comm::Group& group) {
                               Branches model(1);
                               model.parameters()[0]->set_types(at::kBFloat16, at::kFloat);
                               model.materialize();
                               model.reset_parameters(Key(1));
                               if (group.rank() == 1) {
                                 model.parameters()[0]->tensor().detach()[element].fill_(2);
                               }
                               data_parallel(model, group);
                             }),
        Error)
        << element;
  }
}

// Words that change places have the same sum.
TEST(DataParallel, StartingValuesThatChangedPlacesAreNoticed) {
  EXPECT_THROW(comm::run_on_threads({.size = 2,
                                     .memory_limit_bytes = std::size_t{1} << 31,
                                     .timeout = std::chrono::seconds(60)},
                                    [](const comm::Group& group) {
                                      Branches model(1);
                                      model.materialize();
                                      const at::Tensor values = at::arange(3, at::kFloat);
                                      model.parameters()[0]->tensor().detach().copy_(
                                          group.rank() == 1 ? 2 - values : values);
                                      data_parallel(model, group);
                                    }),
               Error);
}

// Over all ranks the parts hold every element of every gradient once: a sum of squares over the
// world is that of one rank, in every way to reduce and on every mesh.
TEST(CountedParts, AreAPartitionOfTheGradient) {
  const auto count_of = [](nn::Model& model, GradientReduction& reduction) {
    reduction.begin(0, 1);
    for (const auto& parameter : model.parameters()) {
      if (!parameter->requires_grad()) continue;
      const at::Tensor value = parameter->tensor();
      (value * at::ones_like(value)).sum().backward();
    }
    reduction.finish();
    double elements = 0;
    double sum = 0;
    for (const at::Tensor& part : counted_parts(reduction.owned(), reduction.gradients())) {
      elements += static_cast<double>(part.numel());
      sum += part.sum().item<double>();
    }
    return std::pair{elements, sum};
  };
  double all = 0;
  for (const auto& parameter : nn::make_model(tiny())->parameters())
    all += static_cast<double>(parameter->global_count());
  for (const int ranks : {1, 3, 4}) {
    comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& world) {
                           const auto model = nn::make_model(tiny());
                           model->materialize();
                           model->reset_parameters(Key(1));
                           const auto reduction = data_parallel(*model, world);
                           const auto [elements, sum] = count_of(*model, *reduction);
                           EXPECT_EQ(world.sum(elements), all);
                           EXPECT_EQ(world.sum(sum), all * ranks) << "each rank gave ones";
                         });
  }
}

}  // namespace
}  // namespace shoal::parallel::data_parallel_test
