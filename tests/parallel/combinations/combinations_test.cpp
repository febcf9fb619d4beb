// Which techniques go together: each, each pair and the larger products, against one rank. Renders
// docs/reference/combinations.md.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shoal/base/file.h"
#include "shoal/comm/world.h"
#include "tests/parallel/combinations/one_step.h"
#include "tests/parallel/combinations/ten_steps.h"

namespace shoal::parallel::combinations_test {
namespace {

/// Runs ways, each once, and compares them with one rank alone.
class Matrix {
 public:
  /// Runs a way for every model that it can divide, and returns their letters.
  std::string letters_of(const Combination& way) {
    run(way);
    std::string letters;
    for (const Lettered& model : models_of(way)) letters += model.letter;
    return letters;
  }

 private:
  struct Lettered {
    char letter;
    ModelSpec spec;
    std::int64_t samples;
    /// With all that tells its run on one rank from others.
    std::string name() const {
      return fmt::format("{}, {} key-value heads, {} samples", letter, spec.kv_heads, samples);
    }
  };
  struct Alone {
    OneStep one_step;
    TenSteps ten_steps;
  };
  using Runs = std::map<std::string, TenSteps>;  ///< by name of the model

  static std::vector<Lettered> models_of(const Combination& way) {
    std::vector<Lettered> models;
    const auto add = [&](char letter, ModelSpec spec) {
      // Keys and values of two heads cannot be divided four times.
      const std::int64_t heads = way.degrees.cp * way.degrees.tp;
      if (way.context == ContextMethod::kHeads && spec.kv_heads % heads != 0)
        spec.kv_heads = spec.heads;
      // Narrow layers want larger weights than the 0.02 of wide ones, or they hardly act.
      spec.init_std = 0.15;
      models.push_back({letter, spec, way.samples});
    };
    // Schedules have their promise, the same bits, with models whose embeddings are not tied.
    const bool of_schedules = way.micro_batches != kMicroBatches;
    if (way.degrees.ep == 1) {
      if (!of_schedules) add('G', gpt2());
      add('L', llama());
    }
    if (!of_schedules || way.degrees.ep > 1) add('M', mixture());
    if (!of_schedules && way.degrees.ep > 1 && way.ranks() <= 4) add('X', softmax_mixture());
    return models;
  }

  const Alone& alone(const Lettered& model) {
    const auto [place, is_new] = alone_.try_emplace(model.name());
    if (is_new) {
      place->second.one_step = one_step_alone(model.spec, model.samples);
      ten_steps_alone(model.spec, model.samples, place->second.ten_steps);
    }
    return place->second;
  }

  /// Returns ten steps of a way, or of one rank, by name of the model.
  const TenSteps& ten_steps(const Combination& way, const Lettered& model) {
    return way.ranks() == 1 ? alone(model).ten_steps : run(way).at(model.name());
  }

  const Runs& run(const Combination& way) {
    const auto [place, is_new] = runs_.try_emplace(way.whole_text());
    Runs& found = place->second;
    if (!is_new) return found;
    const std::vector<Lettered> models = models_of(way);
    for (const Lettered& model : models) {
      alone(model);
      found.try_emplace(model.name());
    }
    comm::run_on_threads({.size = way.ranks(), .arena = false, .timeout = std::chrono::seconds(60)},
                         [&](const comm::Group& world) {
                           // Ranks are threads already; LibTorch's own would wait for work in
                           // loops.
                           at::set_num_threads(1);
                           const mesh::Mesh mesh(world, way.degrees);
                           for (const Lettered& model : models) {
                             const Alone& expected = alone_.at(model.name());
                             compare_one_step(mesh, world, way, model.spec, expected.one_step);
                             ten_steps_of(mesh, world, way, model.spec, expected.ten_steps,
                                          found.at(model.name()));
                           }
                         });
    for (const Lettered& model : models) {
      const std::string where = fmt::format("{}, {}", way.whole_text(), model.name());
      compare_ten_steps(found.at(model.name()), alone(model).ten_steps,
                        static_cast<std::size_t>(way.steps), where);
      // The copies of a tied weight add up their uses in another order. Sixteen ranks without a
      // pipeline are not run for this alone.
      if (!way.staged() || model.spec.tied_embeddings || way.ranks() > 16) continue;
      Combination unstaged = way;
      unstaged.degrees.pp = 1;
      const WholeWeights& same = ten_steps(unstaged, model).unclipped;
      EXPECT_EQ(found.at(model.name()).unclipped.differs_from(same), "")
          << where << ": a parameter has other bits than without the pipeline";
    }
    return found;
  }

  std::map<std::string, Alone> alone_;
  std::map<std::string, Runs> runs_;
};

/// A technique, as a part of a way.
struct Technique {
  const char* name;
  std::function<void(Combination&)> join;
};

const std::vector<Technique> kTechniques{
    {"DDP", [](Combination& way) { way.degrees.dp_shard = 2; }},
    {"ZeRO-1", [](Combination& way) { way.degrees.dp_shard = 2, way.zero = 1; }},
    {"ZeRO-2", [](Combination& way) { way.degrees.dp_shard = 2, way.zero = 2; }},
    {"FSDP", [](Combination& way) { way.degrees.dp_shard = 2, way.zero = 3; }},
    {"HSDP",
     [](Combination& way) {
       way.degrees.dp_shard = 2, way.degrees.dp_replicate = 2, way.zero = 3;
     }},
    {"tp", [](Combination& way) { way.degrees.tp = 2; }},
    {"cp ring", [](Combination& way) { way.degrees.cp = 2; }},
    {"cp heads", [](Combination& way) { way.degrees.cp = 2, way.context = ContextMethod::kHeads; }},
    {"pp 1f1b", [](Combination& way) { way.degrees.pp = 2; }},
    {"pp zb-v", [](Combination& way) { way.degrees.pp = 2, way.schedule = "zb-v"; }},
    // Alone it has data-parallel ranks, among whose tokens experts are divided.
    {"ep", [](Combination& way) {
       way.degrees.ep = 2;
       if (way.degrees.stage_ranks() == 1) way.degrees.dp_shard = 2;
     }}};
constexpr std::size_t kSharding = 5;  ///< the first of these are ways of data parallelism

/// The number of the group of alternatives of a technique: two of one group do not go together.
std::size_t group_of(std::size_t technique) {
  if (technique < kSharding) return 0;
  if (technique == 5) return 1;
  return technique < 8 ? 2 : technique < 10 ? 3 : 4;
}

constexpr const char* kHead = R"(# What goes with what

Every cell of this page is a test (`tests/parallel/combinations/`). A letter stands for a model that
gives on this mesh what it gives on one rank. Biases and norms of the models are not 0 and 1, so
that nothing that is counted twice or left out can hide. The test writes this page, and fails when
it changes. It compares:

- one step of two micro-batches in fp64: the loss (1e-11), the gradient of every parameter (1e-10)
  and the norm of the gradient;
- ten steps in fp32 from the same seed, through the step that jobs run, with AdamW, the last eight
  of them clipped: the initial weights have the bits of one rank; every loss is within 1e-5, and
  every norm of the gradient within 1e-5 of itself; the ranks that hold copies of a weight end with
  the same bits;
- where there is a pipeline, on up to 16 ranks: the weights after the two steps that are not clipped
  have the bits of the same mesh without a pipeline. So a pipeline alone has the bits of one rank,
  and zero bubble (zb-v) those of 1f1b. (A norm is summed by stages, and the two copies of a tied
  weight add up their uses in another order: steps that are clipped, and G, are compared within the
  bounds above.)

Two micro-batches do not tell orders apart. With up to eight, every schedule on one to four ranks
has the bits of one rank, tied weights on two ranks included, in `SameBits` of
`tests/parallel/pipeline/same_bits_test.cpp`; as jobs of twenty steps, in
`PipelinesTrainTheSameBits` of `tests/train/equivalence_test.cpp`.

G is GPT-2 (tied embeddings, dropout), L is Llama (two key-value heads of four, untied), M a mixture
of experts as DeepSeek-V3's (a dense block, then four routed experts and a shared one, chosen by
sigmoids), X one as Mixtral's (four experts in every block, chosen by a softmax; on up to four
ranks). ZeRO and FSDP run with copied parameters, as between hosts;
[sharding.md](../concepts/sharding.md) has the other ways. `ep` divides experts, so it has M and X
alone.

## Pairs

The diagonal is a technique alone. Every degree is 2; HSDP has two copies of two shards.

)";
/// Every technique with every other.
std::string pairs(Matrix& matrix) {
  std::string page = "| |";
  for (const Technique& one : kTechniques) page += fmt::format(" {} |", one.name);
  page += "\n|---|";
  for (std::size_t i = 0; i < kTechniques.size(); ++i) page += "---|";
  page += "\n";
  for (std::size_t row = 0; row < kTechniques.size(); ++row) {
    page += fmt::format("| **{}** |", kTechniques[row].name);
    for (std::size_t column = 0; column < kTechniques.size(); ++column) {
      std::string cell;
      if (column <= row) {
        Combination way;
        kTechniques[column].join(way);
        if (row != column) kTechniques[row].join(way);
        const bool both = row == column || group_of(row) != group_of(column);
        cell = both ? matrix.letters_of(way) : "or";
      }
      page += fmt::format(" {} |", cell);
    }
    page += "\n";
  }
  return page;
}

constexpr const char* kBehindPairs = R"(
"or": these are two ways of one thing, of which a job has one. Two key-value heads are not divided
four times, so that Llama has four of them where `cp heads` and `tp` meet. The mixture has a balance
loss and a capacity, both of whole sequences, of which ranks of `cp` and `tp` have parts.

## Schedules

Every schedule of a pipeline of two ranks, beside two ranks of something else (of HSDP: two copies
of two shards): the step in fp64 and the two steps that are not clipped, of four micro-batches. The
weights have the bits of the mesh without a pipeline, and so those of 1f1b.

)";

/// Every schedule with ranks that divide something else too.
std::string schedules(Matrix& matrix) {
  const std::vector<Technique> axes{kTechniques[5], kTechniques[0], kTechniques[3],
                                    kTechniques[4], kTechniques[6], kTechniques.back()};
  std::string page = "| |";
  for (const Technique& one : axes) page += fmt::format(" {} |", one.name);
  page += "\n|---|---|---|---|---|---|---|\n";
  for (const char* name : {"in_turn", "gpipe", "interleaved", "zb-h1", "zb-h2", "dualpipe-v"}) {
    page += fmt::format("| **{}** |", name);
    for (const Technique& one : axes) {
      Combination way{.degrees = {.pp = 2}, .schedule = name, .micro_batches = 4, .steps = 2};
      one.join(way);
      // One for each micro-batch of each data rank.
      way.samples = std::max(kSamples, way.micro_batches * way.degrees.dp());
      page += fmt::format(" {} |", matrix.letters_of(way));
    }
    page += "\n";
  }
  return page;
}

constexpr const char* kProducts = R"(
## Products

| mesh | ranks | ZeRO | models |
|---|---|---|---|
)";

std::string products(Matrix& matrix) {
  const std::vector<Combination> ways{
      {{.pp = 2, .dp_shard = 2, .tp = 2}, 1},
      {{.pp = 2, .dp_shard = 2, .tp = 2}, 3, "zb-v"},
      {{.dp_shard = 2, .cp = 2, .tp = 2}, 2},
      {{.dp_shard = 2, .cp = 2, .tp = 2}, 3, "1f1b", ContextMethod::kHeads},
      {{.pp = 2, .cp = 2, .tp = 2}, 0, "zb-v", ContextMethod::kHeads},
      {{.pp = 2, .dp_shard = 2, .cp = 2}, 3, "1f1b", ContextMethod::kHeads},
      {{.dp_shard = 2, .tp = 2, .ep = 4}, 2},
      {{.dp_replicate = 2, .dp_shard = 2, .tp = 2, .ep = 2}, 3},
      {{.pp = 2, .dp_shard = 2, .ep = 2}, 3},
      {{.pp = 2, .dp_shard = 4, .ep = 2}, 1, "zb-v"},
      {{.pp = 2, .dp_shard = 2, .cp = 2, .tp = 2}, 3},
      {{.pp = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, 2},
      {{.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, 3},
      {{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2}, 3},
      {{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, 3, "zb-v"},
  };
  std::string page;
  for (const Combination& way : ways) {
    page += fmt::format("| {} | {} | {} | {} |\n", way.text(), way.ranks(), way.zero,
                        matrix.letters_of(way));
  }
  return page;
}

std::string rendered() {
  Matrix matrix;
  return kHead + pairs(matrix) + kBehindPairs + schedules(matrix) + kProducts + products(matrix);
}

TEST(Combinations, AreThoseOfThePage) {
  at::set_num_threads(1);
  const std::string path = SHOAL_DOCS "/reference/combinations.md";
  const std::string page = rendered();
  if (read_text(path) == page || HasFailure()) return;
  const std::string beside = testing::TempDir() + "combinations.md";
  std::ofstream(beside) << page;
  ADD_FAILURE() << path << " is not what the test found: it has written " << beside
                << ", to be looked at and put in its place";
}

}  // namespace
}  // namespace shoal::parallel::combinations_test
