// A mixture of experts against a loop over tokens and experts in double: outputs, extra losses and
// every gradient.
#include "shoal/nn/mixture.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "shoal/base/error.h"

namespace shoal::nn::mixture_test {
namespace {

using model::ModelSpec;
using model::RouterScore;
using Tensors = std::map<std::string, at::Tensor>;

ModelSpec mixture_spec() {
  ModelSpec spec = *model::named_model("moe-tiny");
  spec.layers = 2, spec.hidden = 10, spec.ffn = 7, spec.experts = 5, spec.experts_per_token = 2;
  return spec;
}

/// The mixture alone, in double, with values that are nowhere 0 or 1.
std::shared_ptr<MixtureMlp> mixture_of(const ModelSpec& spec) {
  auto mixture = std::make_shared<MixtureMlp>(spec);
  mixture->materialize(at::kDouble);
  const c10::AutoGradMode not_recording(false);
  double seed = 1;
  for (const auto& parameter : mixture->parameters()) {
    const at::Tensor tensor = parameter->tensor();
    seed += 3.7;
    tensor.copy_(
        ((at::arange(tensor.numel(), at::kDouble) * 0.61 + seed).sin() * 0.4).view(tensor.sizes()));
  }
  return mixture;
}

/// The same mixture as a loop.
class PlainMixture {
 public:
  PlainMixture(const ModelSpec& spec, const Module& mixture) : spec_(spec) {
    for (const auto& parameter : mixture.parameters()) {
      tensors_[parameter->name()] =
          parameter->tensor().detach().clone().set_requires_grad(parameter->requires_grad());
    }
  }
  const at::Tensor& at(const std::string& name) const { return tensors_.at(name); }

  /// x [B, T, h]; `balance` receives the balance loss for `weights`, one a sequence.
  at::Tensor run(const at::Tensor& x, const std::vector<double>& weights, at::Tensor& balance) {
    std::vector<at::Tensor> samples;
    balance = at::zeros({}, at::kDouble);
    for (std::int64_t b = 0; b < x.size(0); ++b) {
      at::Tensor fractions;
      samples.push_back(sequence(x[b], fractions));
      balance = balance + fractions * weights.at(static_cast<std::size_t>(b)) * spec_.balance_loss;
    }
    return at::stack(samples);
  }
  std::vector<std::int64_t> load = std::vector<std::int64_t>(5);
  std::int64_t dropped = 0;

 private:
  at::Tensor sequence(const at::Tensor& x, at::Tensor& balance) {  // [T, h]
    const auto experts = static_cast<std::size_t>(spec_.experts);
    const std::int64_t columns = x.size(0);
    const double capacity =
        std::ceil(spec_.capacity_factor * spec_.experts_per_token * columns / spec_.experts);
    std::vector<double> taken(experts);
    std::vector<double> chosen(experts);
    std::vector<at::Tensor> out;
    at::Tensor mean = at::zeros({spec_.experts}, at::kDouble);
    for (std::int64_t t = 0; t < columns; ++t) {
      const at::Tensor logits = at("router.weight").mv(x[t]);
      const at::Tensor scores = spec_.router_score == RouterScore::kSoftmax ? at::softmax(logits, 0)
                                                                            : at::sigmoid(logits);
      mean = mean + scores / scores.sum() / static_cast<double>(columns);
      const auto best = best_of(scores);
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (const std::int64_t e : best) sum = sum + scores[e];
      at::Tensor y = at::zeros({spec_.hidden}, at::kDouble);
      for (const std::int64_t e : best) {
        ++load[static_cast<std::size_t>(e)];
        ++chosen[static_cast<std::size_t>(e)];
        if (spec_.capacity_factor > 0 && taken[static_cast<std::size_t>(e)]++ >= capacity) {
          ++dropped;
          continue;
        }
        at::Tensor gate = scores[e] * spec_.gate_scale;
        if (spec_.normalize_gates) gate = gate / sum;
        y = y + gate * expert("experts.", e, x[t]);
      }
      if (spec_.shared_ffn > 0) y = y + expert("shared.", -1, x[t]);
      out.push_back(y);
    }
    balance = at::zeros({}, at::kDouble);
    for (std::size_t e = 0; e < experts; ++e) {
      const double f = static_cast<double>(spec_.experts) * chosen[e] /
                       static_cast<double>(spec_.experts_per_token * columns);
      balance = balance + mean[static_cast<std::int64_t>(e)] * f;
    }
    return at::stack(out);
  }
  std::vector<std::int64_t> best_of(const at::Tensor& scores) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(spec_.experts));
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](std::int64_t e) {
      return scores[e].item<double>() +
             (spec_.router_bias ? at("router.bias")[e].item<double>() : 0);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return value(a) > value(b); });
    order.resize(static_cast<std::size_t>(spec_.experts_per_token));
    return order;
  }
  at::Tensor expert(const std::string& name, std::int64_t e, const at::Tensor& x) const {
    const auto times = [&](const char* matrix, const at::Tensor& v) {
      const at::Tensor& weight = at(name + matrix + ".weight");
      return (e < 0 ? weight : weight[e]).mv(v);
    };
    return times("down", at::silu(times("gate", x)) * times("up", x));
  }

  ModelSpec spec_;
  Tensors tensors_;
};

at::Tensor wave(at::IntArrayRef shape, double seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return (at::arange(count, at::kDouble) * 0.37 + seed).sin().view(shape);
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  EXPECT_LE((actual - expected).abs().max().item<double>(),
            1e-10 * std::max(1e-3, expected.abs().max().item<double>()))
      << what;
}

/// Compares output, balance loss, load and all gradients.
std::int64_t check_mixture(const ModelSpec& spec, const std::string& what) {
  const auto mixture = mixture_of(spec);
  PlainMixture plain(spec, *mixture);
  const at::Tensor x = wave({2, 6, 10}, 1).set_requires_grad(true);
  const at::Tensor same = x.detach().clone().set_requires_grad(true);
  const at::Tensor residual = wave({2, 6, 10}, 2);
  const at::Tensor weights = wave({2, 6, 10}, 3);
  LossSink extra;
  ExpertLoad load;
  Context context;
  context.extra_losses = &extra;
  context.expert_load = &load;
  context.labels = at::ones({2, 6}, at::kLong);
  context.labels[1].narrow(0, 0, 4).fill_(-100);
  context.loss_scale = 0.25;

  const at::Tensor y = mixture->onto(residual, x, context);
  at::Tensor balance;
  // Valid labels of a sequence times the scale of the loss.
  const at::Tensor expected = plain.run(same, {6 * 0.25, 2 * 0.25}, balance);
  expect_close(y - residual, expected, what + ": output");
  at::Tensor loss = (y * weights).sum();
  if (spec.balance_loss > 0) {
    EXPECT_EQ(extra.losses().size(), 1u);
    expect_close(extra.losses().at(0), balance, what + ": balance loss");
    loss = loss + extra.losses()[0];
  } else {
    EXPECT_TRUE(extra.losses().empty());
  }
  loss.backward();
  ((expected * weights).sum() + balance).backward();
  expect_close(x.grad(), same.grad(), what + ": input");
  for (const auto& parameter : mixture->parameters()) {
    if (!parameter->requires_grad()) {
      EXPECT_FALSE(parameter->gradient().defined());
      continue;
    }
    expect_close(parameter->gradient(), plain.at(parameter->name()).grad(),
                 what + ": " + parameter->name());
  }
  EXPECT_TRUE(at::equal(load.counts().at("router"), at::tensor(plain.load, at::kLong))) << what;
  return plain.dropped;
}

TEST(Mixture, OutputsAndGradientsAreThoseOfALoopOverTokens) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool normalize : {true, false}) {
      ModelSpec spec = mixture_spec();
      spec.router_score = score, spec.normalize_gates = normalize, spec.gate_scale = 1.7;
      check_mixture(spec, fmt::format("plain {} {}", static_cast<int>(score), normalize));
      spec.router_bias = true, spec.balance_loss = 0.3, spec.shared_ffn = 9;
      check_mixture(spec, fmt::format("with all {} {}", static_cast<int>(score), normalize));
      spec.capacity_factor = 0.8;
      EXPECT_GT(check_mixture(spec, fmt::format("capacity {}", normalize)), 0);
    }
  }
}

// Gradients of experts that nobody chose are zeros, not what an earlier step left.
TEST(Mixture, AllTokensMayChooseTheSameExperts) {
  ModelSpec spec = mixture_spec();
  spec.router_bias = true;
  const auto mixture = mixture_of(spec);
  {
    const c10::AutoGradMode not_recording(false);
    mixture->find_parameter("router.bias")
        ->tensor()
        .copy_(at::tensor({0.0, 50.0, 0.0, 0.0, 60.0}, at::kDouble));
  }
  ExpertLoad load;
  Context context;
  context.expert_load = &load;
  for (int step = 0; step < 2; ++step) {
    mixture->clear_gradients();
    mixture->onto({}, wave({1, 4, 10}, step), context).sum().backward();
    for (const char* name : {"experts.gate.weight", "experts.up.weight", "experts.down.weight"}) {
      const at::Tensor gradient = mixture->find_parameter(name)->gradient();
      for (std::int64_t e = 0; e < 5; ++e) {
        EXPECT_EQ(gradient[e].abs().max().item<double>() > 0, e == 1 || e == 4)
            << name << " of expert " << e << " in step " << step;
      }
    }
  }
  EXPECT_TRUE(at::equal(load.counts().at("router"), at::tensor({0, 8, 0, 0, 8}, at::kLong)));
}

// Balance loss and capacity are of a sequence: two micro-batches give what one gives.
TEST(Mixture, NoDivisionOfABatchChangesTheLossOrTheGradients) {
  ModelSpec spec = mixture_spec();
  spec.heads = 2, spec.kv_heads = 1, spec.head_size = 4, spec.vocab = 31, spec.sequence = 8;
  spec.balance_loss = 0.5, spec.capacity_factor = 0.9, spec.dense_layers = 1, spec.dense_ffn = 12;
  const at::Tensor tokens = (at::arange(4 * 8, at::kLong) * 13 + 3).remainder(31).view({4, 8});
  const at::Tensor labels = (tokens * 5 + 1).remainder(31);
  std::map<std::int64_t, double> losses;
  std::map<std::int64_t, Tensors> gradients;
  for (const std::int64_t rows : {4, 1}) {
    const auto model = make_model(spec);
    model->materialize(at::kDouble);
    model->reset_parameters(Key(3));
    for (std::int64_t i = 0; i < 4; i += rows) {
      LossSink extra;
      Context context;
      context.extra_losses = &extra;
      context.labels = labels.narrow(0, i, rows);
      context.loss_scale = 1.0 / 32;
      at::Tensor loss = (*model)(tokens.narrow(0, i, rows), context);
      EXPECT_EQ(extra.losses().size(), 1u) << "the first block is dense";
      loss = loss + extra.losses().at(0);
      loss.backward();
      losses[rows] += loss.item<double>();
    }
    for (const auto& parameter : model->parameters())
      gradients[rows][parameter->name()] = parameter->gradient();
  }
  EXPECT_NEAR(losses[1], losses[4], 1e-12);
  for (const auto& [name, gradient] : gradients[4])
    expect_close(gradients[1][name], gradient, name);
}

TEST(Mixture, NothingIsDroppedOrCountedOutsideTraining) {
  ModelSpec spec = mixture_spec();
  const auto free = mixture_of(spec);
  spec.capacity_factor = 0.5;
  const auto full = mixture_of(spec);
  const at::Tensor x = wave({2, 6, 10}, 1);
  ExpertLoad load;
  Context context;
  context.expert_load = &load;
  EXPECT_FALSE(at::equal(full->onto({}, x, context), free->onto({}, x, context)));
  load.clear();
  context.training = false;
  EXPECT_TRUE(at::equal(full->onto({}, x, context), free->onto({}, x, context)));
  EXPECT_TRUE(load.counts().empty());
}

// Autograd leaves the bias alone; the training step moves it where the model has a rate.
TEST(Mixture, TheBiasOfARouterIsFrozenAndAdjustedAtItsRate) {
  ModelSpec spec = mixture_spec();
  spec.router_bias = true;
  for (const double rate : {0.0, 0.001}) {
    spec.router_bias_rate = rate;
    const auto bias = mixture_of(spec)->find_parameter("router.bias");
    EXPECT_FALSE(bias->requires_grad());
    EXPECT_EQ(bias->adjusted(), rate > 0) << rate;
  }
}

/// Gives its input times a number.
class Scaled final : public FeedForward {
 public:
  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x, const Context&) override {
    return residual.defined() ? residual + 5 * x : 5 * x;
  }
};

TEST(Mixture, ASharedExpertThatIsReplacedIsTheNewOne) {
  ModelSpec spec = mixture_spec();
  const auto routed = mixture_of(spec);
  spec.shared_ffn = 9;
  const auto shared = mixture_of(spec);
  for (const auto& parameter : routed->parameters()) {
    const c10::AutoGradMode not_recording(false);
    shared->find_parameter(parameter->name())->tensor().copy_(parameter->tensor());
  }
  shared->replace_module("shared", std::make_shared<Scaled>());
  const at::Tensor x = wave({2, 3, 10}, 1);
  expect_close(shared->onto({}, x, Context()), routed->onto({}, x, Context()) + 5 * x, "shared");
}

TEST(Mixture, ExpertsNeedARouter) {
  const auto mixture = mixture_of(mixture_spec());
  EXPECT_THROW((*mixture->find_module("experts"))(wave({3, 10}, 1), Context()), Error);
}

}  // namespace
}  // namespace shoal::nn::mixture_test
