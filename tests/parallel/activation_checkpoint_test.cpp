#include "shoal/parallel/activation_checkpoint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "shoal/comm/allocator.h"
#include "shoal/comm/world.h"
#include "shoal/nn/replay.h"
#include "shoal/parallel/data/gradient_reduction.h"

namespace shoal::parallel::activation_checkpoint_test {
namespace {

using model::Keep;
using Mode = model::RecomputePolicy::Mode;
using Strategy = DataParallelOptions::Strategy;

constexpr std::int64_t kSamples = 2, kColumns = 24;

model::ModelSpec tiny(const char* name, double dropout) {
  model::ModelSpec spec = *model::named_model(name);
  spec.layers = 4, spec.hidden = 64, spec.heads = 4,
  spec.kv_heads = spec.kv_heads == spec.heads ? 4 : 2, spec.head_size = 16, spec.ffn = 160;
  spec.sequence = 32, spec.vocab = 256, spec.dropout = dropout;
  if (name == std::string("llama-tiny")) spec.kv_heads = 2;
  if (spec.qk_norm) spec.head_size = 24;
  return spec;
}

std::shared_ptr<nn::Model> made(const model::ModelSpec& spec) {
  auto model = nn::make_model(spec);
  model->materialize();
  model->reset_parameters(Key(1));
  return model;
}

nn::Context context_of(std::int64_t rank, std::int64_t step, std::int64_t micro,
                       at::Tensor& tokens) {
  tokens = (at::arange(kSamples * (kColumns + 1), at::kLong) * (7 + rank) + 31 * step + 5 * micro)
               .remainder(256)
               .view({kSamples, kColumns + 1});
  nn::Context context;
  context.key = Key(3).child(static_cast<std::uint64_t>(step));
  context.labels = tokens.slice(1, 1, kColumns + 1).contiguous();
  context.loss_scale = 1.0 / 64;
  context.samples = at::arange(kSamples, at::kLong) + 2 * micro + 10 * rank;
  tokens = tokens.slice(1, 0, kColumns).contiguous();
  return context;
}

/// Two steps of two micro-batches with plain gradient descent: losses, then the last gradients,
/// then the parameters.
std::vector<at::Tensor> train(GradientReduction& reduction, nn::Model& model, int rank) {
  std::vector<at::Tensor> result;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      reduction.begin(micro, 2);
      at::Tensor tokens;
      const nn::Context context = context_of(rank, step, micro, tokens);
      const at::Tensor loss = model(tokens, context);
      loss.backward();
      result.push_back(loss.detach());
    }
    reduction.finish();
    for (const auto& p : model.parameters()) {
      if (step == 1) result.push_back(p->gradient().clone());
      p->tensor().detach().add_(p->gradient(), -0.1);
    }
    model.clear_gradients();
  }
  for (const auto& p : model.parameters()) result.push_back(p->tensor().detach().clone());
  return result;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = a[i].equal(b[i]);
  return equal;
}

std::vector<Keep> ways_of(const model::ModelSpec& spec, Mode mode, double budget = 0) {
  return model::kept_by_block(spec, {kSamples, kColumns},
                              {.mode = mode, .every = 2, .budget_bytes = budget});
}

void on_ranks(int ranks, const std::function<void(const comm::Group&)>& body) {
  comm::run_on_threads({.size = ranks,
                        .memory_limit_bytes = std::size_t{1} << 31,
                        .timeout = std::chrono::seconds(60)},
                       body);
}

// Bitwise: the second pass computes the same operations on the same numbers.
TEST(ActivationCheckpoint, EveryModeGivesTheBitsOfThePlainModel) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny"}) {
        for (const double dropout : {0.0, 0.2}) {
          const auto spec = tiny(name, dropout);
          const auto plain_model = made(spec);
          const auto plain = train(*data_parallel(*plain_model, group), *plain_model, group.rank());
          const double all =
              model::blocks_bytes(spec, {kSamples, kColumns}, ways_of(spec, Mode::kNone));
          for (const auto& [what, ways] :
               {std::pair{"full", ways_of(spec, Mode::kFull)},
                {"every 2nd", ways_of(spec, Mode::kEveryK)},
                {"selective", ways_of(spec, Mode::kSelective)},
                {"budget", ways_of(spec, Mode::kBudget, 0.8 * all)},
                {"mixed",
                 std::vector{Keep::kInput, Keep::kProducts, Keep::kEverything, Keep::kProducts}}}) {
            for (const Strategy strategy : {Strategy::kInPlace, Strategy::kBuckets}) {
              const auto model = made(spec);
              checkpoint_activations(*model, ways);
              const auto result = train(
                  *data_parallel(*model, group, {.bucket_bytes = 50000, .strategy = strategy}),
                  *model, group.rank());
              EXPECT_TRUE(same(result, plain))
                  << name << ", dropout " << dropout << ", " << what << ", " << ranks << " ranks";
            }
          }
        }
      }
    });
  }
}

TEST(ActivationCheckpoint, LayersOfAPerceptronToo) {
  model::ModelSpec spec = *model::named_model("mlp-digits");
  std::vector<at::Tensor> results[3];
  for (const Keep keep : {Keep::kEverything, Keep::kProducts, Keep::kInput}) {
    const auto model = made(spec);
    checkpoint_activations(*model, std::vector<Keep>(spec.widths.size(), keep));
    nn::Context context;
    context.labels = at::arange(8, at::kLong);
    // The input wants no gradient: the first layer's node must reach the graph all the same.
    const at::Tensor loss = (*model)(
        at::arange(8 * spec.inputs, at::kFloat).view({8, spec.inputs}).div(100).sin(), context);
    loss.backward();
    auto& result = results[static_cast<int>(keep)];
    result.push_back(loss.detach());
    for (const auto& p : model->parameters()) result.push_back(p->gradient());
  }
  EXPECT_TRUE(results[0].back().defined());
  EXPECT_TRUE(same(results[1], results[0]));
  EXPECT_TRUE(same(results[2], results[0]));
}

// The comparison above can fail: a second pass that draws other masks is seen.
TEST(ActivationCheckpoint, ASecondPassWithAnotherKeyIsCaught) {
  const auto spec = tiny("gpt2-tiny", 0.2);
  on_ranks(1, [&](const comm::Group& group) {
    const auto plain_model = made(spec);
    const auto broken_model = made(spec);
    const auto plain = train(*data_parallel(*plain_model, group), *plain_model, 0);
    checkpoint_activations(*broken_model, ways_of(spec, Mode::kFull));
    class Forgetful final : public nn::Module {
     public:
      explicit Forgetful(std::shared_ptr<nn::Module> inner) : inner_(std::move(inner)) {}

     protected:
      at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
        nn::Context other = context;
        if (context.recomputing) other.key = context.key.child("another");
        return inner_->direct(x, other);
      }

     private:
      std::shared_ptr<nn::Module> inner_;
    };
    const auto block = broken_model->units()[2];
    Forgetful forgetful(block);
    block->set_around([&](nn::Module&, const at::Tensor& x, const nn::Context& context) {
      return recomputed(forgetful, x, context, Keep::kInput);
    });
    EXPECT_FALSE(same(train(*data_parallel(*broken_model, group), *broken_model, 0), plain));
  });
}

/// Gives its input back as it is.
class Identity final : public nn::Module {
 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context&) override { return x; }
};

TEST(ActivationCheckpoint, AModuleMayGiveItsInputBack) {
  Identity identity;
  for (const Keep keep : {Keep::kProducts, Keep::kInput}) {
    const at::Tensor leaf = at::arange(4, at::kFloat).set_requires_grad(true);
    const at::Tensor x = leaf * 2;
    const at::Tensor y = recomputed(identity, x, nn::Context(), keep);
    EXPECT_FALSE(y.is_same(x)) << "the input stays the result of what made it";
    (y * 3 + x).sum().backward();
    EXPECT_TRUE(leaf.grad().equal(at::arange(4, at::kFloat) * 0 + 8));
  }
}

TEST(ActivationCheckpoint, EveryBlockIsSpokenFor) {
  const auto model = made(tiny("gpt2-tiny", 0));
  EXPECT_THROW(checkpoint_activations(*model, std::vector<Keep>(3, Keep::kInput)), Error);
  EXPECT_THROW(checkpoint_activations(*model, std::vector<Keep>(5, Keep::kInput)), Error);
  EXPECT_NO_THROW(checkpoint_activations(*model, std::vector<Keep>(4, Keep::kInput)));
}

TEST(ActivationCheckpoint, HooksRunAgainAndKnowIt) {
  const auto spec = tiny("gpt2-tiny", 0);
  const auto model = made(spec);
  checkpoint_activations(*model, ways_of(spec, Mode::kFull));
  std::vector<std::string> calls;
  model->units()[1]->on_pre_forward(
      [&](nn::Module&, const at::Tensor&, const nn::Context& context) {
        calls.push_back(context.recomputing ? "gather again" : "gather");
        return at::Tensor();
      });
  model->units()[1]->on_post_forward(
      [&](nn::Module&, const at::Tensor&, const nn::Context& context) {
        calls.push_back(context.recomputing ? "keep" : "release");
        return at::Tensor();
      });
  at::Tensor tokens;
  const nn::Context context = context_of(0, 0, 0, tokens);
  (*model)(tokens, context).backward();
  EXPECT_EQ(calls, (std::vector<std::string>{"gather", "release", "gather again", "keep"}));
}

/// x + w tanh(x), with an extra loss; all of them share one w.
class Sharing final : public nn::Module {
 public:
  Sharing() = default;
  explicit Sharing(const Sharing* first) {
    if (first) {
      tie("w", w_ = first->w_);
    } else {
      w_ = parameter("w", {4}, model::Init::kOnes);
    }
  }

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    const at::Tensor y = x + w_->tensor() * x.tanh();
    if (context.extra_losses) context.extra_losses->add(y.square().sum() * 0.01);
    return y;
  }

 private:
  std::shared_ptr<nn::Parameter> w_;
};

model::ModelSpec three_layers() {
  model::ModelSpec spec = *model::named_model("mlp-digits");
  spec.widths = {4, 4};
  return spec;
}

class SharingModel final : public nn::Model {
 public:
  SharingModel() : Model(three_layers()) {
    auto first = std::make_shared<Sharing>(nullptr);
    unit("a", first);
    unit("b", std::make_shared<Sharing>(first.get()));
    unit("c", std::make_shared<Sharing>(first.get()));
  }
};

TEST(ActivationCheckpoint, SharedWeightsAreReadyOnceAndExtraLossesCount) {
  at::Tensor plain;
  for (const Keep keep : {Keep::kEverything, Keep::kInput}) {
    SharingModel model;
    model.materialize();
    model.reset_parameters(Key(1));
    checkpoint_activations(model, {keep, keep});
    int ready = 0;
    model.parameters()[0]->on_gradient_ready([&](nn::Parameter&) { ++ready; });
    nn::LossSink extra;
    nn::Context context;
    context.extra_losses = &extra;
    at::Tensor loss = model(at::arange(4, at::kFloat), context).sum();
    ASSERT_EQ(extra.losses().size(), 3u);
    for (const at::Tensor& more : extra.losses()) loss = loss + more;
    loss.backward();
    EXPECT_EQ(ready, 1);
    const at::Tensor gradient = model.parameters()[0]->gradient();
    if (keep == Keep::kEverything) plain = gradient.clone();
    // Three contributions are added in another order.
    EXPECT_TRUE(gradient.allclose(plain, 1e-6, 1e-6));
  }
}

struct Measured {
  double activations = 0, total = 0;
};

Measured peak(const model::ModelSpec& spec, const model::MicroBatch& batch,
              const std::vector<Keep>& ways) {
  const auto model = made(spec);
  checkpoint_activations(*model, ways);
  const at::Tensor tokens = at::arange(batch.samples * batch.columns, at::kLong)
                                .remainder(spec.vocab)
                                .view({batch.samples, batch.columns});
  nn::Context context;
  context.labels = tokens;
  const auto arena = comm::installed_arena();
  Measured measured;
  for (int round = 0; round < 2; ++round) {  // the first makes the gradients' memory
    arena->reset_peaks();
    const double before = static_cast<double>(arena->ledger().total.in_use);
    (*model)(tokens, context).backward();
    const auto ledger = arena->ledger();
    measured.activations =
        static_cast<double>(ledger.categories[static_cast<int>(MemoryCategory::kActivations)].peak);
    measured.total = static_cast<double>(ledger.total.peak) - before;
    EXPECT_EQ(ledger.categories[static_cast<int>(MemoryCategory::kActivations)].in_use, 0u)
        << "nothing stays after backward";
    model->clear_gradients();
  }
  return measured;
}

// 3 %: the head's own tensors (its input and statistics), rounding to cache lines.
TEST(ActivationCheckpoint, MemoryFallsAsThePlanSays) {
  on_ranks(1, [&](const comm::Group&) {
    for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny"}) {
      for (const double dropout : {0.0, 0.1}) {
        model::ModelSpec spec = tiny(name, dropout);
        spec.layers = 8, spec.hidden = 128, spec.head_size = 32, spec.ffn = 512,
        spec.sequence = 128, spec.vocab = 64;
        const model::MicroBatch batch{2, 128};
        const auto ways = [&](Mode mode, double budget = 0) {
          return model::kept_by_block(spec, batch,
                                      {.mode = mode, .every = 2, .budget_bytes = budget});
        };
        const double all = model::blocks_bytes(spec, batch, ways(Mode::kNone));
        const double head = 4 * batch.rows() * static_cast<double>(2 * spec.hidden + spec.vocab);
        double none = 0;
        for (const auto& [what, chosen] : {std::pair{"none", ways(Mode::kNone)},
                                           {"full", ways(Mode::kFull)},
                                           {"every 2nd", ways(Mode::kEveryK)},
                                           {"selective", ways(Mode::kSelective)},
                                           {"half", ways(Mode::kBudget, 0.5 * all)}}) {
          const Measured measured = peak(spec, batch, chosen);
          const double planned = model::blocks_bytes(spec, batch, chosen);
          EXPECT_GT(measured.activations, 0.97 * planned) << name << " " << what;
          EXPECT_LT(measured.activations, 1.03 * (planned + head)) << name << " " << what;
          if (what == std::string("none")) none = measured.total;
          if (what == std::string("full")) {
            EXPECT_LT(measured.total, 0.4 * none)
                << "one block and eight inputs instead of eight blocks";
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace shoal::parallel::activation_checkpoint_test
