// Expert parallelism against one rank: outputs and losses bit for bit, every gradient in double,
// bytes on the wire, and ranks without a row.
#include "shoal/parallel/expert/expert_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/model/kept_activations.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/context/context_parallel.h"
#include "shoal/parallel/expert/dispatch.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/parallel/tensor/tensor_parallel.h"
#include "shoal/plan/traffic.h"
#include "tests/error_text.h"
#include "tests/parallel/divided_pass.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::parallel::expert_parallel_test {
namespace {

using model::ModelSpec;
using plan::Degrees;
using testing::HasSubstr;

ModelSpec mixtral() {
  ModelSpec spec = *model::named_model("moe-tiny");
  spec.layers = 2, spec.hidden = 24, spec.heads = 4, spec.kv_heads = 2, spec.head_size = 8;
  spec.ffn = 10, spec.vocab = 37, spec.sequence = 16;
  return spec;
}

/// Everything that a mixture may have: what is defined for whole sequences, shared experts, a dense
/// block, a bias in the choice.
ModelSpec deepseek() {
  ModelSpec spec = mixtral();
  spec.name = "deepseek", spec.layers = 3, spec.router_score = model::RouterScore::kSigmoid;
  spec.gate_scale = 1.5, spec.router_bias = true, spec.balance_loss = 0.3;
  spec.capacity_factor = 0.9, spec.shared_ffn = 6, spec.dense_layers = 1, spec.dense_ffn = 20;
  return spec;
}

at::Tensor part_of(const at::Tensor& whole, const mesh::Box& box) {
  at::Tensor part = whole;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  return part;
}

/// Values that follow from a parameter's name and are nowhere 0 or 1. `bias`: that of routers, to
/// send all tokens to the same experts.
void fill_model(nn::Model& model, const std::vector<double>& bias = {}) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model.parameters()) {
    double seed = 0;
    for (const char c : parameter->name()) seed = 0.7 * seed + c;
    const at::Tensor wave =
        (at::arange(parameter->global_count(), at::kDouble) * 0.61 + seed).sin();
    const double centre = parameter->init() == model::Init::kOnes ? 1 : 0;
    at::Tensor whole = (wave * 0.2 + centre).view(parameter->global_shape());
    if (!bias.empty() && parameter->name().ends_with("router.bias")) whole = at::tensor(bias);
    parameter->tensor().copy_(part_of(whole, parameter->box()));
  }
}

struct Tokens {
  at::Tensor inputs, labels;
};

Tokens some_tokens(std::int64_t samples, std::int64_t columns) {
  const at::Tensor all = (at::arange(samples * (columns + 1), at::kLong).square() * 17 + 5)
                             .remainder(37)
                             .view({samples, columns + 1});
  const at::Tensor labels = all.slice(1, 1, columns + 1).clone();
  labels.view({-1}).slice(0, 0, labels.numel(), 7).fill_(-100);
  return {all.slice(1, 0, columns).contiguous(), labels};
}

/// Number `part` of `parts` equal parts of the samples.
Tokens part_of_samples(const Tokens& all, int part, int parts) {
  const std::int64_t count = all.inputs.size(0) / parts;
  return {all.inputs.narrow(0, part * count, count), all.labels.narrow(0, part * count, count)};
}

struct Pass {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

/// Forward and backward of this rank's part of `all`; the loss with the balance losses.
double run_pass(nn::Model& model, const Tokens& all, const BatchShare& share) {
  const std::int64_t count = all.inputs.size(0) / share.ranks();
  const std::int64_t first = share.rank() * count;
  const at::Tensor inputs = all.inputs.narrow(0, first, count);
  nn::LossSink extra;
  nn::Context context;
  context.extra_losses = &extra;
  context.key = Key(9);
  context.samples = at::arange(first, first + count, at::kLong);
  context.labels = all.labels.narrow(0, first, count);
  context.loss_scale = 1.0 / 50;
  const at::Tensor own = share.cut(inputs, context);
  at::Tensor loss = model(own, context);
  for (const at::Tensor& more : extra.losses()) loss = loss + more;
  loss.backward();
  return loss.item<double>();
}

struct Case {
  ModelSpec spec;
  Degrees degrees;
  std::int64_t samples;
  std::int64_t columns = 12;
  std::vector<double> bias = {};
  model::Keep keep = model::Keep::kEverything;
  ContextMethod way = ContextMethod::kRing;
};

Pass one_rank(const Case& c) {
  const auto model = nn::make_model(c.spec);
  model->materialize(at::kDouble);
  fill_model(*model, c.bias);
  Pass pass;
  pass.loss = run_pass(*model, some_tokens(c.samples, c.columns), {});
  for (const auto& parameter : model->parameters()) {
    if (parameter->requires_grad())
      pass.gradients[parameter->name()] = parameter->gradient().clone();
  }
  return pass;
}

void on_ranks(int ranks, const std::function<void(const comm::Group&)>& body) {
  comm::run_on_threads({.size = ranks, .arena = false, .timeout = std::chrono::seconds(30)}, body);
}

void check_gradients(const Case& c) {
  const Pass expected = one_rank(c);
  const Tokens all = some_tokens(c.samples, c.columns);
  on_ranks(static_cast<int>(c.degrees.ranks()), [&](const comm::Group& world) {
    const mesh::Mesh mesh(world, c.degrees);
    const auto model = nn::make_model(c.spec);
    split_tensors(*model, mesh);
    place_experts(*model, mesh);
    split_sequence(*model, mesh, c.way);
    model->materialize(at::kDouble);
    fill_model(*model, c.bias);
    checkpoint_activations(
        *model, std::vector<model::Keep>(static_cast<std::size_t>(c.spec.layers), c.keep));
    const auto reduction = data_parallel_on(*model, mesh);
    reduction->begin(0, 1);
    const double loss = run_pass(*model, all, BatchShare(mesh, 0, c.way));
    reduction->finish();
    EXPECT_NEAR(world.sum(loss), expected.loss, 1e-12);
    const std::string where =
        fmt::format("rank {} of {}, ep {}", world.rank(), c.spec.name, c.degrees.ep);
    for (const auto& parameter : model->parameters()) {
      if (!parameter->requires_grad()) continue;
      const at::Tensor& whole = expected.gradients.at(parameter->name());
      const double scale = whole.abs().max().item<double>();
      EXPECT_GT(scale, 0) << parameter->name();
      EXPECT_LE(
          (parameter->gradient() - part_of(whole, parameter->box())).abs().max().item<double>(),
          1e-10 * scale)
          << parameter->name() << " on " << where;
    }
    double squares = 0;
    for (const at::Tensor& part : counted_parts(reduction->owned(), reduction->gradients()))
      squares += part.square().sum().item<double>();
    double norm = 0;
    for (const auto& [name, gradient] : expected.gradients)
      norm += gradient.square().sum().item<double>();
    EXPECT_NEAR(world.sum(squares), norm, 1e-10 * norm) << "the norm is a partition, " << where;
  });
}

TEST(ExpertParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  for (const ModelSpec& spec : {mixtral(), deepseek()}) {
    check_gradients({spec, {.dp_shard = 2, .ep = 2}, 4});
    check_gradients({spec, {.dp_shard = 4, .ep = 4}, 4, 11});
    check_gradients({spec, {.dp_shard = 4, .ep = 2}, 4});
  }
}

// A layer whose experts were forgotten would train as well, with all of them on every rank.
TEST(ExpertParallel, EveryLayerHasItsShareOfTheExperts) {
  for (const ModelSpec& spec : {mixtral(), deepseek()}) {
    on_ranks(2, [&](const comm::Group& world) {
      const mesh::Mesh mesh(world, {.dp_shard = 2, .ep = 2});
      const auto model = nn::make_model(spec);
      place_experts(*model, mesh);
      std::int64_t divided = 0;
      for (const auto& parameter : model->parameters()) {
        if (parameter->name().find(".experts.") == std::string::npos) continue;
        EXPECT_EQ(2 * parameter->box().count(), parameter->global_count()) << parameter->name();
        ++divided;
      }
      EXPECT_EQ(divided, 3 * (spec.layers - spec.dense_layers)) << "gate, up and down";
    });
  }
}

// Without ep the experts are copied: tensor-parallel ranks route their own rows.
TEST(ExpertParallel, WithTensorParallelRanks) {
  for (const ModelSpec& spec : {mixtral(), deepseek()}) {
    check_gradients({spec, {.tp = 2}, 2});
    check_gradients({spec, {.tp = 2}, 1, 11});
    check_gradients({spec, {.tp = 2, .ep = 2}, 3, 11});
    check_gradients({spec, {.dp_shard = 2, .tp = 2, .ep = 2}, 2, 9});
    check_gradients({spec, {.dp_shard = 2, .tp = 2, .ep = 4}, 2});
  }
}

// The loss that balances the experts of a sequence counts the choices and the labels of all its
// columns, and a capacity those before a column, whatever ranks have them: in equal and unequal
// parts, beside tensor ranks that divide samples or columns, and once more where a block is
// recomputed.
TEST(ExpertParallel, WithContextParallelRanks) {
  ModelSpec balanced = deepseek();
  balanced.capacity_factor = 0;
  ModelSpec limited = deepseek();
  limited.capacity_factor = 0.7, limited.balance_loss = 0;
  for (const ModelSpec& spec : {deepseek(), balanced, limited}) {
    check_gradients({spec, {.cp = 2}, 2});
    check_gradients({spec, {.cp = 3}, 2, 11});
    check_gradients({spec, {.dp_shard = 2, .cp = 2, .ep = 4}, 2, 9});
    check_gradients({spec, {.cp = 2, .tp = 2, .ep = 2}, 1, 11});
    check_gradients({spec, {.cp = 2, .tp = 2, .ep = 4}, 2});
    check_gradients({spec, {.cp = 2, .ep = 2}, 2, 12, {}, model::Keep::kInput});
    check_gradients(
        {spec, {.cp = 2, .ep = 2}, 2, 11, {}, model::Keep::kEverything, ContextMethod::kHeads});
  }
}

// Three head-exchanging ranks and three tensor ranks, which cut the two chunks of a context rank
// anywhere: between them, within the first and within the second.
TEST(ExpertParallel, ACapacityFindsTheOrderOfAllChunks) {
  ModelSpec spec = deepseek();
  spec.heads = spec.kv_heads = 3, spec.hidden = 21, spec.dense_ffn = 21;
  spec.capacity_factor = 0.6;
  check_gradients({spec, {.cp = 3}, 2, 13, {}, model::Keep::kEverything, ContextMethod::kHeads});
  for (const std::int64_t columns : {12, 13, 17})
    check_gradients({spec, {.cp = 2, .tp = 3, .ep = 2}, 1, columns});
  // Some chunks have no column.
  check_gradients({spec, {.cp = 4, .ep = 2}, 3, 5});
  // The same sequence without a limit is another function.
  const Case limited{spec, {}, 1, 13};
  spec.capacity_factor = 0;
  EXPECT_GT(std::abs(one_rank(limited).loss - one_rank({spec, {}, 1, 13}).loss), 1e-4);
}

TEST(ExpertParallel, ReplicatedCopiesHoldAllExpertsEach) {
  check_gradients({deepseek(), {.dp_replicate = 2, .dp_shard = 2, .ep = 2}, 4});
}

TEST(ExpertParallel, WithRecomputedBlocks) {
  for (const model::Keep keep : {model::Keep::kInput, model::Keep::kProducts})
    check_gradients({deepseek(), {.dp_shard = 2, .ep = 2}, 2, 12, {}, keep});
}

// All tokens go to the experts of one rank; the others have none, forward and backward.
TEST(ExpertParallel, AllTokensMayGoToOneRank) {
  ModelSpec spec = deepseek();
  spec.capacity_factor = 0;
  const std::vector<double> first{60, 50, 0, 0};
  const std::vector<double> one_each{0, 50, 60, 0};
  for (const std::vector<double>& bias : {first, one_each}) {
    const Case c{spec, {.dp_shard = 4, .ep = 4}, 4, 5, bias};
    const Pass expected = one_rank(c);
    on_ranks(4, [&](const comm::Group& world) {
      const mesh::Mesh mesh(world, c.degrees);
      const auto model = nn::make_model(spec);
      place_experts(*model, mesh);
      model->materialize(at::kDouble);
      fill_model(*model, bias);
      const auto reduction = data_parallel_on(*model, mesh);
      reduction->begin(0, 1);
      EXPECT_NEAR(world.sum(run_pass(*model, some_tokens(4, 5), BatchShare(mesh))), expected.loss,
                  1e-12);
      reduction->finish();
      const auto up = model->find_parameter("blocks.1.mlp.experts.up.weight");
      const at::Tensor wanted = part_of(expected.gradients.at(up->name()), up->box());
      EXPECT_LE((up->gradient() - wanted).abs().max().item<double>(), 1e-12);
      EXPECT_EQ(wanted.abs().max().item<double>() > 0,
                bias[static_cast<std::size_t>(world.rank())] > 0);
    });
  }
}

/// A model of float32 with weights drawn as in training, and its experts divided over `mesh`.
std::shared_ptr<nn::Model> drawn_model(const ModelSpec& spec, const mesh::Mesh* mesh = nullptr) {
  auto model = nn::make_model(spec);
  if (mesh != nullptr) place_experts(*model, *mesh);
  model->materialize();
  model->reset_parameters(Key(4));
  return model;
}

// In float32 by the kernels, whose rows do not depend on each other.
TEST(ExpertParallel, LogitsHaveTheBitsOfOneRank) {
  for (const ModelSpec& spec : {mixtral(), deepseek()}) {
    const Tokens all = some_tokens(4, 12);
    const auto whole = drawn_model(spec);
    nn::Context plain;
    const at::Tensor logits = (*whole)(all.inputs, plain).detach();
    for (const int ranks : {2, 4}) {
      on_ranks(ranks, [&](const comm::Group& world) {
        const mesh::Mesh mesh(world, {.dp_shard = ranks, .ep = ranks});
        const auto model = drawn_model(spec, &mesh);
        for (const auto& parameter : model->parameters()) {
          const at::Tensor wanted =
              part_of(whole->find_parameter(parameter->name())->tensor(), parameter->box());
          EXPECT_TRUE(at::equal(parameter->tensor(), wanted)) << parameter->name();
        }
        const std::int64_t count = 4 / ranks;
        const std::int64_t first = world.rank() * count;
        nn::Context context;
        context.samples = at::arange(first, first + count, at::kLong);
        EXPECT_TRUE(at::equal((*model)(all.inputs.narrow(0, first, count), context),
                              logits.narrow(0, first, count)))
            << spec.name << " on " << ranks;
        // Whole logits on every rank, as in generation: all ranks route the same tokens.
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal((*model)(all.inputs, plain), logits));
      });
    }
  }
}

// One rank that runs the ranks' samples as micro-batches of its own, in float32. Each loss, that of
// balance among it, has the same bits, and so has their sum in the order of the ranks.
TEST(ExpertParallel, LossHasTheBitsOfOneRank) {
  for (const ModelSpec& spec : {mixtral(), deepseek()}) {
    const Tokens all = some_tokens(8, 12);
    const auto whole = drawn_model(spec);
    for (const int ranks : {2, 4}) {
      std::vector<double> losses;
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        losses.push_back(run_pass(*whole, part_of_samples(all, rank, ranks), {}));
        sum += losses.back();
      }
      on_ranks(ranks, [&](const comm::Group& world) {
        const mesh::Mesh mesh(world, {.dp_shard = ranks, .ep = ranks});
        const auto model = drawn_model(spec, &mesh);
        const double loss = run_pass(*model, all, BatchShare(mesh));
        EXPECT_EQ(loss, losses[static_cast<std::size_t>(world.rank())]) << spec.name;
        EXPECT_EQ(world.sum(loss), sum) << spec.name << " on " << ranks;
      });
    }
  }
}

// Experts that copy rows from where they lie, and experts to which they are sent: the same loss and
// gradients, with a capacity, and where all tokens go to the experts of one rank.
TEST(ExpertParallel, HasTheSameBitsInPlace) {
  for (const int ranks : {2, 3, 4}) {
    for (const DividedPass& pass : expert_passes()) {
      on_ranks(ranks, [&](const comm::Group& world) {
        EXPECT_TRUE(at::equal(loss_and_gradients(world, pass),
                              loss_and_gradients(comm::without_shared_memory(world), pass)))
            << pass.text() << ", rank " << world.rank() << " of " << ranks;
      });
    }
  }
}

// A rank whose gradient is undefined still answers the others.
TEST(Dispatch, BackwardRunsOnEveryRank) {
  on_ranks(3, [](const comm::Group& world) {
    // Rank r has rows for expert r + 1 alone, and rank 2 has none.
    std::vector<std::int64_t> counts(3, 0);
    if (world.rank() < 2) counts[static_cast<std::size_t>(world.rank()) + 1] = 2 + world.rank();
    const auto dispatch = exchange_counts(counts, world);
    const std::int64_t own = world.rank() < 2 ? 2 + world.rank() : 0;
    const at::Tensor rows = (at::arange(own * 2, at::kDouble) + 10 * world.rank())
                                .view({own, 2})
                                .set_requires_grad(true);
    const at::Tensor arrived = send_to_experts(rows, dispatch, world);
    EXPECT_EQ(arrived.size(0), world.rank() == 0 ? 0 : 1 + world.rank());
    if (arrived.size(0) > 0) {
      EXPECT_EQ(arrived[0][1].item<double>(), 10 * (world.rank() - 1) + 1);
    }
    const at::Tensor back = return_from_experts(arrived * 3, dispatch, world);
    EXPECT_TRUE(at::equal(back.detach(), rows.detach() * 3));
    (back * back).sum().backward();
    EXPECT_TRUE(at::equal(rows.grad(), rows.detach() * 18));
  });
}

// Two experts on each of two ranks: each rank's rows of one expert stay together, rank by rank.
TEST(Dispatch, RowsOfAnExpertComeInTheOrderOfTheRanks) {
  const auto check = [](const comm::Group& world) {
    const std::vector<std::int64_t> counts = world.rank() == 0
                                                 ? std::vector<std::int64_t>{1, 2, 0, 1}
                                                 : std::vector<std::int64_t>{2, 1, 1, 1};
    const std::int64_t rows = world.rank() == 0 ? 4 : 5;
    const auto dispatch = exchange_counts(counts, world);
    const at::Tensor mine = (at::arange(rows, at::kDouble) + 100 * world.rank()).view({rows, 1});
    const at::Tensor arrived = send_to_experts(mine, dispatch, world).view({-1});
    const at::Tensor expected = world.rank() == 0 ? at::tensor({0.0, 100.0, 101.0, 1.0, 2.0, 102.0})
                                                  : at::tensor({103.0, 3.0, 104.0});
    EXPECT_TRUE(at::equal(arrived, expected.to(at::kDouble))) << arrived;
    EXPECT_EQ(dispatch->counts, world.rank() == 0 ? (std::vector<std::int64_t>{3, 3})
                                                  : (std::vector<std::int64_t>{1, 2}));
  };
  on_ranks(2, check);
  on_ranks(2, [&](const comm::Group& world) { check(comm::without_shared_memory(world)); });
}

// Rows that are copied from where they lie, and rows that are sent: the same, there and back and
// backward, also of ranks and experts without any, and of rows in bf16. Nothing is sent but counts.
TEST(Dispatch, HasTheSameBitsInPlace) {
  for (const int ranks : {2, 3, 4}) {
    const int experts = 3 * ranks;
    for (int round = 0; round < 6; ++round) {
      on_ranks(ranks, [&](const comm::Group& world) {
        const comm::Group apart = comm::without_shared_memory(world);
        // From no row of an expert to eight; in the last rounds all go to one rank, or come from
        // one.
        std::vector<std::int64_t> counts;
        for (int e = 0; e < experts; ++e) {
          const bool none = (round == 4 && e / 3 != ranks - 1) || (round == 5 && world.rank() != 1);
          counts.push_back(none ? 0 : (5 * e + 3 * world.rank() + round * e + 1) % 9);
        }
        const std::int64_t rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        const at::Tensor values = (at::arange(rows * 7, at::kFloat) + 1000 * world.rank())
                                      .view({rows, 7})
                                      .to(round == 3 ? at::kBFloat16 : at::kFloat);
        const auto pass = [&](const comm::Group& group) {
          const auto dispatch = exchange_counts(counts, group);
          const double before = group.bytes_sent();
          const at::Tensor x = values.clone().requires_grad_();
          const at::Tensor arrived = send_to_experts(x, dispatch, group);
          const at::Tensor y = return_from_experts(arrived * (2 + group.rank()), dispatch, group);
          (y * y).sum().backward();
          return std::tuple(arrived.detach(), y.detach(), x.grad(), group.bytes_sent() - before);
        };
        const auto [arrived, y, dx, sent] = pass(world);
        const auto [arrived_sent, y_sent, dx_sent, bytes] = pass(apart);
        EXPECT_TRUE(at::equal(arrived, arrived_sent)) << round;
        EXPECT_TRUE(at::equal(y, y_sent)) << round;
        EXPECT_TRUE(at::equal(dx, dx_sent)) << round;
        EXPECT_EQ(sent, 0);
        EXPECT_GT(world.sum(bytes), 0);
      });
    }
  }
}

// Evenly spread tokens: dispatch and combine, forward and backward, as the planner counts them.
TEST(Dispatch, SendsTheBytesOfTheFormula) {
  constexpr std::int64_t kTokens = 12;
  constexpr std::int64_t kVisits = 2;
  constexpr std::int64_t kWidth = 5;
  on_ranks(4, [&](const comm::Group& in_memory) {
    const comm::Group world = comm::without_shared_memory(in_memory);
    const auto dispatch =
        exchange_counts(std::vector<std::int64_t>(8, kTokens * kVisits / 8), world);
    const double before = world.bytes_sent();
    const at::Tensor rows =
        at::empty({kTokens * kVisits, kWidth}, at::kFloat).zero_().set_requires_grad(true);
    return_from_experts(send_to_experts(rows, dispatch, world), dispatch, world).sum().backward();
    EXPECT_DOUBLE_EQ(world.bytes_sent() - before,
                     4 * plan::expert_elements(4, kTokens, kVisits, kWidth));
  });
}

TEST(ExpertParallel, RefusesDegreesThatDivideNothing) {
  on_ranks(4, [](const comm::Group& world) {
    const auto refused = [&](const ModelSpec& spec, const Degrees& degrees) {
      const auto model = nn::make_model(spec);
      const mesh::Mesh mesh(world, degrees);
      return error_text([&] { place_experts(*model, mesh); });
    };
    ModelSpec six = mixtral();
    six.experts = 6;
    EXPECT_THAT(refused(six, {.dp_shard = 4, .ep = 4}),
                HasSubstr("ep = 4: must divide experts = 6, as 3 or 6 does"));
    six.experts = 2;
    EXPECT_THAT(refused(six, {.dp_shard = 4, .ep = 4}),
                HasSubstr("ep = 4: must divide experts = 2, as 2 does"));
    EXPECT_THAT(refused(mixtral(), {.dp_replicate = 2, .dp_shard = 2, .ep = 4}),
                HasSubstr("must divide the 2 ranks of a copy of the sharded states"));
    EXPECT_THAT(refused(*model::named_model("llama-tiny"), {.dp_shard = 4, .ep = 2}),
                HasSubstr("ep = 2: the model has no experts"));
  });
}

}  // namespace
}  // namespace shoal::parallel::expert_parallel_test
