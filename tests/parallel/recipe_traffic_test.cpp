// What the modules that a recipe places send, against sums that are written here from the recipe:
// a gather or a scattered sum of x features sends (n - 1) / n of them, an exchange a n-th of that,
// a sum that all get twice as much; the gradient of each travels as its values did.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/parallel/recipe/division.h"
#include "shoal/plan/traffic.h"
#include "tests/parallel/one_rank.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::parallel::recipe_traffic_test {
namespace {

constexpr double kHidden = 24, kFfn = 36, kQkv = 3 * 24;
constexpr std::int64_t kColumns = 12;

/// Two, three and four ranks divide all of it.
ModelSpec divisible() {
  ModelSpec spec = gpt2();
  spec.heads = spec.kv_heads = 12;
  spec.head_size = 2;
  spec.ffn = 36;
  spec.tied_embeddings = false;
  return spec;
}

/// Features of a token that travel forward in one block, by the kind of move.
struct Moved {
  double gathered = 0;  ///< or summed and scattered
  double exchanged = 0;
  double summed = 0;  ///< for all ranks

  Moved operator+(const Moved& other) const {
    return {gathered + other.gathered, exchanged + other.exchanged, summed + other.summed};
  }
  double sent(double ranks) const {
    return (ranks - 1) / ranks * (gathered + exchanged / ranks + 2 * summed);
  }
};

// Attention and feed-forward layers of the default recipe: rows are gathered behind the norm, and
// parts are summed into the stream.
const Moved kAttention{.gathered = 2 * kHidden};
const Moved kMlp{.gathered = 2 * kHidden};

struct RecipeCase {
  std::vector<std::string> recipe;
  Moved first;         ///< block
  Moved second;        ///< block
  bool ends = true;    ///< embedding and head are divided
  bool alone = false;  ///< attention of whole samples needs nobody, and the blocks send no more
};

std::vector<RecipeCase> cases() {
  const Moved rows{.exchanged = kQkv + kHidden};  // rows for heads, and heads for rows
  const Moved moved = Moved{.gathered = 2 * kFfn, .exchanged = 2 * kHidden} +
                      Moved{.gathered = kHidden, .exchanged = kHidden, .summed = kQkv};
  const Moved mixed = Moved{.gathered = kHidden, .exchanged = kFfn} +
                      Moved{.gathered = kHidden, .exchanged = kHidden};
  return {
      {{}, kAttention + kMlp, kAttention + kMlp},
      {{"blocks.1.mlp.*: weight replicate"}, kAttention + kMlp, kAttention},
      {{"*: weight replicate"}, rows, rows, false, true},
      {{"embedding.tokens: weight replicate", "head.output: weight replicate"},
       kAttention + kMlp,
       kAttention + kMlp,
       false},
      // Every layer moves what it reads and what it gives.
      {{"*.mlp.up: weight shard(1), input stream, output shard(-1)",
        "*.mlp.down: weight shard(0), input shard(-1), output stream",
        "*.attention.qkv: weight shard(1), input stream, output replicate",
        "*.attention.out: weight shard(1), input replicate"},
       moved,
       moved},
      {{"*.mlp.up: weight replicate, output shard(-1)", "*.attention.qkv: output shard(-1)",
        "*.attention.out: weight replicate, input shard(-1)"},
       mixed,
       mixed},
  };
}

/// Ranks that share memory copy from where it lies what others exchange.
enum class Memory { kShared, kApart };

/// Bytes that each rank of tp sends in a forward and a backward pass.
std::vector<double> sent(const RecipeCase& c, int tp, std::int64_t samples, model::Keep keep,
                         Memory memory = Memory::kApart) {
  const ModelSpec spec = divisible();
  const Data all = data(samples, kColumns);
  std::vector<double> bytes(static_cast<std::size_t>(tp));
  comm::run_on_threads(
      {.size = tp, .arena = false, .timeout = std::chrono::seconds(30)},
      [&](const comm::Group& in_memory) {
        const comm::Group world =
            memory == Memory::kShared ? in_memory : comm::without_shared_memory(in_memory);
        const mesh::Mesh mesh(world, {.tp = tp});
        const BatchShare share(mesh);
        const auto model = nn::make_model(spec);
        const std::vector<model::Keep> kept(static_cast<std::size_t>(spec.layers), keep);
        apply(*model, mesh, {.recipe = parse_recipe(c.recipe), .kept = kept});
        fill(*model);
        const double before = world.bytes_sent();
        (*model)(all.inputs, context_of(share, all, 0)).backward();
        bytes[static_cast<std::size_t>(world.rank())] = world.bytes_sent() - before;
      });
  return bytes;
}

double expected(const RecipeCase& c, double tp, double samples, bool recomputed) {
  const double tokens = samples * static_cast<double>(kColumns);
  const double passes = recomputed ? 3 : 2;  // forward as backward
  const bool whole_samples = c.alone && samples == tp;
  const double blocks = whole_samples ? 0 : passes * (c.first + c.second).sent(tp);
  // The embedding's parts are summed, the head's rows gathered; two float64 a token for the loss.
  const double ends = c.ends ? 2 * Moved{.gathered = 2 * kHidden}.sent(tp) : 0;
  const double losses = c.ends ? 16 * (tp - 1) : 0;
  return tokens * (4 * (blocks + ends) + losses);
}

// One sample is cut along columns, as many as ranks along samples.
TEST(RecipeTraffic, IsThatOfItsMoves) {
  for (const RecipeCase& c : cases()) {
    for (const int tp : {2, 3, 4}) {
      for (const std::int64_t samples : {1, tp}) {
        for (const model::Keep keep : {model::Keep::kEverything, model::Keep::kInput}) {
          const bool recomputed = keep == model::Keep::kInput;
          EXPECT_THAT(sent(c, tp, samples, keep),
                      testing::Each(testing::DoubleEq(
                          expected(c, tp, static_cast<double>(samples), recomputed))))
              << fmt::format("{} on {} ranks, {} samples, recomputed {}", fmt::join(c.recipe, "; "),
                             tp, samples, recomputed);
        }
      }
    }
  }
}

/// Bytes of a step that the planner has for the ranks of tp.
double planned(const RecipeCase& c, int tp, std::int64_t samples, model::Keep keep, Memory memory) {
  plan::Training training;
  training.precision = "fp32";
  training.degrees.tp = tp;
  training.micro_batch = training.global_batch = samples;
  training.sequence = kColumns;
  training.kept.assign(2, keep);
  training.division = unusual_division(parse_recipe(c.recipe), divisible(), tp, true);
  plan::Cluster cluster = *plan::cluster_preset("cpu");
  cluster.hosts = memory == Memory::kShared ? 1 : tp;
  cluster.devices_per_host = tp / cluster.hosts;
  double bytes = 0;
  for (const plan::Traffic& one : plan::traffic(divisible(), training, cluster)) {
    if (one.technique == "tensor" || one.technique == "vocabulary") bytes += one.bytes;
  }
  return bytes;
}

// Three samples of twelve columns are cut along columns by two and by four ranks.
TEST(RecipeTraffic, IsThatOfThePlan) {
  for (const RecipeCase& c : cases()) {
    for (const int tp : {2, 3, 4}) {
      for (const model::Keep keep :
           {model::Keep::kEverything, model::Keep::kProducts, model::Keep::kInput}) {
        for (const std::int64_t samples : {1, 3}) {
          for (const Memory memory : {Memory::kShared, Memory::kApart}) {
            EXPECT_THAT(sent(c, tp, samples, keep, memory),
                        testing::Each(testing::DoubleEq(planned(c, tp, samples, keep, memory))))
                << fmt::format("{} on {} ranks, {} samples, keeping {}, memory {}",
                               fmt::join(c.recipe, "; "), tp, samples, static_cast<int>(keep),
                               static_cast<int>(memory));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal::parallel::recipe_traffic_test
