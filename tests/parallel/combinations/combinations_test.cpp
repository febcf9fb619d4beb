// Which techniques go together: each, each pair and the larger products, against one rank. Renders
// docs/reference/combinations.md.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/plan/stage_sizes.h"
#include "shoal/schedule/gathers.h"
#include "shoal/schedule/generators.h"
#include "tests/parallel/small_transformers.h"

namespace shoal::parallel {
namespace {

using plan::Degrees;

constexpr int kMicroBatches = 2;
constexpr std::int64_t kSamples = 8, kColumns = 16;  ///< of all ranks and micro-batches

/// As DeepSeek-V3's blocks without its attention: a dense block, and one of routed experts beside a
/// shared one. `whole`: sequences are whole on a rank, or cut along tp alone, so that what counts
/// the tokens of a sequence is defined.
ModelSpec mixture(bool whole) {
  ModelSpec spec = *model::named_model("deepseek-moe-tiny");
  spec.layers = 2, spec.hidden = 24, spec.heads = 4, spec.kv_heads = 4, spec.head_size = 6;
  spec.ffn = 12, spec.dense_ffn = 20, spec.shared_ffn = 8, spec.dense_layers = 1;
  spec.experts = 4, spec.experts_per_token = 2, spec.vocab = 37, spec.sequence = 16;
  spec.balance_loss = whole ? 0.1 : 0;
  spec.capacity_factor = 0;
  return spec;
}

/// One way to divide a model among ranks.
struct Way {
  Degrees degrees;
  int zero = 0;
  const char* schedule = "1f1b";
  ContextWay context = ContextWay::kRing;

  int ranks() const { return static_cast<int>(degrees.ranks()); }
  std::string text() const {
    std::string list;
    const auto add = [&](const char* axis, std::int64_t degree) {
      if (degree > 1) list += fmt::format("{}{} {}", list.empty() ? "" : " × ", axis, degree);
    };
    add("pp", degrees.pp), add("dp_replicate", degrees.dp_replicate);
    add("dp_shard", degrees.dp_shard), add("cp", degrees.cp), add("tp", degrees.tp);
    add("ep", degrees.ep);
    return list;
  }
};

/// The micro-batches of some samples, as a rank of `share` runs them.
std::vector<MicroBatch> micro_batches_of(const BatchShare& share) {
  const Data all = data(kSamples, kColumns);
  const std::int64_t own = kSamples / share.ranks();
  const std::int64_t rows = own / kMicroBatches;
  std::vector<MicroBatch> batch;
  for (int i = 0; i < kMicroBatches; ++i) {
    const std::int64_t first = share.rank() * own + i * rows;
    MicroBatch one;
    one.context.key = Key(9);
    one.context.micro_batch = i;
    one.context.samples = at::arange(first, first + rows, at::kLong);
    one.context.labels = all.labels.narrow(0, first, rows);
    one.context.loss_scale = 1.0 / 50;
    one.input = share.cut(all.inputs.narrow(0, first, rows), one.context);
    batch.push_back(std::move(one));
  }
  return batch;
}

/// Runs micro-batches one after the other; returns their losses.
double run_in_turn(nn::Model& model, const std::vector<MicroBatch>& batch,
                   GradientReduction* reduction = nullptr) {
  double sum = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (reduction != nullptr) reduction->begin(static_cast<std::int64_t>(i), kMicroBatches);
    nn::LossSink extra;
    nn::Context context = batch[i].context;
    context.extra_losses = &extra;
    at::Tensor loss = model(batch[i].input, context);
    for (const at::Tensor& more : extra.losses()) loss = loss + more;
    sum += loss.item<double>();
    loss.backward();
    if (reduction != nullptr) reduction->end_backward();
  }
  return sum;
}

struct OneRank {
  double loss = 0;
  double squares = 0;
  std::map<std::string, at::Tensor> gradients;
};

OneRank run_one_rank(const ModelSpec& spec) {
  const auto model = nn::make_model(spec);
  model->materialize(at::kDouble);
  fill(*model);
  OneRank result;
  result.loss = run_in_turn(*model, micro_batches_of({}));
  for (const auto& parameter : model->parameters()) {
    if (!parameter->requires_grad()) continue;
    result.gradients[parameter->name()] = parameter->gradient().clone();
    result.squares += parameter->gradient().square().sum().item<double>();
  }
  return result;
}

ApplyOptions options_of(const Way& way, const ModelSpec& spec) {
  ApplyOptions options;
  options.context_way = way.context;
  options.set_types = [](nn::Model& model) {
    for (const auto& parameter : model.parameters()) parameter->set_types(at::kDouble, at::kDouble);
  };
  using Gathers = ShardingOptions::Gathers;
  if (way.zero > 0) {
    options.sharding =
        ShardingOptions{.stage = static_cast<ShardStage>(way.zero),
                        .copies = ShardingOptions::Copies::kCopied,
                        .gathers = way.degrees.pp > 1 ? Gathers::kByCaller : Gathers::kByTable,
                        .alone = {}};
  }
  if (way.degrees.pp == 1) return options;
  const std::string name = way.schedule;
  options.table = schedule::make_schedule(name, static_cast<int>(way.degrees.pp),
                                          name == "zb-v" ? 2 : 1, kMicroBatches);
  if (way.zero == 3) schedule::add_gathers(options.table, 1);
  options.units_of_stage = plan::even_stages(spec.layers + 2, options.table.stages());
  return options;
}

/// The part of a parameter's gradient, or values, that a range has.
at::Tensor range_of(const at::Tensor& whole, const OwnedRange& range) {
  return local_part(whole, range.parameter->box()).reshape({-1}).slice(0, range.begin, range.end);
}

/// Compares loss, every gradient and the norm of one rank of `way` with those of one rank alone.
void compare(const comm::Group& world, const Way& way, const ModelSpec& spec,
             const OneRank& expected) {
  const std::string where = fmt::format("{}, ZeRO-{}, {}", way.text(), way.zero, spec.name);
  const mesh::Mesh mesh(world, way.degrees);
  const auto model = nn::make_model(spec);
  const ApplyOptions options = options_of(way, spec);
  Applied applied = apply(*model, mesh, options);
  const std::vector<OwnedRange> owned = applied.owned(*model, mesh);
  for (const OwnedRange& range : owned) {
    if (range.begin < range.end)
      range.values.view({-1}).copy_(range_of(perturbed(*range.parameter), range));
  }
  if (applied.sharding != nullptr) applied.sharding->end_update();
  reduce_gradients(applied, *model, mesh);
  const bool staged = options.table.ranks() > 0;
  const BatchShare share(mesh, staged ? options.table.rank_of_stage.back() : 0, way.context);
  const std::vector<MicroBatch> batch = micro_batches_of(share);
  double loss = 0;
  if (staged) {
    Pipeline pipeline(
        mesh.along(mesh::Axis::kPipeline), options.table, applied.stages,
        pipeline_events(*applied.reduction, applied.stages.local, {}, applied.sharding),
        at::kDouble);
    loss = pipeline.run(batch);
  } else {
    loss = run_in_turn(*model, batch, applied.reduction.get());
  }
  applied.reduction->finish();
  std::vector<at::Tensor> gradients = applied.reduction->gradients();
  if (applied.tied) applied.tied->reduce(owned, gradients);
  EXPECT_NEAR(world.sum(loss), expected.loss, 1e-11) << where;
  std::size_t trained = 0;
  for (const OwnedRange& range : owned) {
    if (!range.parameter->requires_grad()) continue;
    const at::Tensor found = gradients.at(trained++);
    if (range.begin == range.end) continue;
    const at::Tensor whole = expected.gradients.at(range.parameter->name());
    const double scale = whole.abs().max().item<double>();
    const at::Tensor wanted = range_of(whole, range);
    const double error = (found.reshape({-1}) - wanted).abs().max().item<double>();
    EXPECT_LE(error, 1e-10 * scale)
        << where << ": " << range.parameter->name() << " on rank " << world.rank();
  }
  double squares = 0;
  for (const at::Tensor& part : counted_parts(owned, gradients))
    squares += part.square().sum().item<double>();
  EXPECT_NEAR(world.sum(squares), expected.squares, 1e-10 * expected.squares)
      << where << ": the norm is a partition";
}

/// Runs a way for every model that it can divide, and returns their letters.
std::string letters_of(const Way& way) {
  std::string letters;
  const bool whole = way.degrees.cp == 1;
  std::vector<std::pair<const char*, ModelSpec>> models{{"M", mixture(whole)}};
  if (way.degrees.ep == 1) models = {{"G", gpt2()}, {"L", llama()}, {"M", mixture(whole)}};
  for (const auto& [letter, spec] : models) {
    // Keys and values of two heads cannot be divided four times.
    const std::int64_t heads = way.degrees.cp * way.degrees.tp;
    if (way.context == ContextWay::kHeads && spec.kv_heads % heads != 0) continue;
    const OneRank expected = run_one_rank(spec);
    comm::run_on_threads(
        {.size = way.ranks(), .arena = false, .timeout = std::chrono::seconds(60)},
        [&, spec = spec](const comm::Group& world) { compare(world, way, spec, expected); });
    letters += letter;
  }
  return letters;
}

/// A technique, as a part of a way.
struct Technique {
  const char* name;
  std::function<void(Way&)> join;
};

const std::vector<Technique> kTechniques{
    {"DDP", [](Way& way) { way.degrees.dp_shard = 2; }},
    {"ZeRO-1", [](Way& way) { way.degrees.dp_shard = 2, way.zero = 1; }},
    {"ZeRO-2", [](Way& way) { way.degrees.dp_shard = 2, way.zero = 2; }},
    {"FSDP", [](Way& way) { way.degrees.dp_shard = 2, way.zero = 3; }},
    {"HSDP",
     [](Way& way) { way.degrees.dp_shard = 2, way.degrees.dp_replicate = 2, way.zero = 3; }},
    {"tp", [](Way& way) { way.degrees.tp = 2; }},
    {"cp ring", [](Way& way) { way.degrees.cp = 2; }},
    {"cp heads", [](Way& way) { way.degrees.cp = 2, way.context = ContextWay::kHeads; }},
    {"pp 1f1b", [](Way& way) { way.degrees.pp = 2; }},
    {"pp zb-v", [](Way& way) { way.degrees.pp = 2, way.schedule = "zb-v"; }},
    // Alone it has data-parallel ranks, among whose tokens experts are divided.
    {"ep", [](Way& way) {
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

std::string rendered() {
  std::string page = R"(# What goes with what

Every cell of this page is a test (`tests/parallel/combinations/`): one step of two micro-batches in
fp64, in which the loss, the gradient of every parameter (1e-10) and the norm of the gradient are
compared with those of one rank. Biases and norms of the models are not 0 and 1, so that nothing
that is counted twice or left out can hide. The test writes this page, and fails when it changes.

G is GPT-2 (tied embeddings, dropout), L is Llama (two key-value heads of four, untied), M a mixture
of experts as DeepSeek-V3's (a dense block, then four routed experts and a shared one). ZeRO and
FSDP run with copied parameters, as between hosts; [sharding.md](../concepts/sharding.md) has the
other ways. `ep` divides experts, so it has M alone.

## Pairs

The diagonal is a technique alone. Every degree is 2; HSDP has two copies of two shards.

)";
  page += "| |";
  for (const Technique& one : kTechniques) page += fmt::format(" {} |", one.name);
  page += "\n|---|";
  for (std::size_t i = 0; i < kTechniques.size(); ++i) page += "---|";
  page += "\n";
  for (std::size_t row = 0; row < kTechniques.size(); ++row) {
    page += fmt::format("| **{}** |", kTechniques[row].name);
    for (std::size_t column = 0; column < kTechniques.size(); ++column) {
      std::string cell;
      if (column <= row) {
        Way way;
        kTechniques[column].join(way);
        if (row != column) kTechniques[row].join(way);
        const bool both = row == column || group_of(row) != group_of(column);
        cell = both ? letters_of(way) : "or";
      }
      page += fmt::format(" {} |", cell);
    }
    page += "\n";
  }
  page += R"(
"or": these are two ways of one thing, of which a job has one. Llama's two key-value heads are not
divided four times, so `cp heads` × `tp` leaves it out. With `cp` the mixture has no balance loss
and no capacity, which count the tokens of a sequence: a job that asks for both is refused.

## Products

| mesh | ranks | ZeRO | models |
|---|---|---|---|
)";
  const std::vector<Way> products{
      {{.pp = 2, .dp_shard = 2, .tp = 2}, 1},
      {{.pp = 2, .dp_shard = 2, .tp = 2}, 3, "zb-v"},
      {{.dp_shard = 2, .cp = 2, .tp = 2}, 2},
      {{.dp_shard = 2, .tp = 2, .ep = 4}, 2},
      {{.dp_replicate = 2, .dp_shard = 2, .tp = 2, .ep = 2}, 3},
      {{.pp = 2, .dp_shard = 2, .ep = 2}, 3},
      {{.pp = 2, .dp_shard = 4, .ep = 2}, 1, "zb-v"},
      {{.pp = 2, .dp_shard = 2, .cp = 2, .tp = 2}, 3},
      {{.pp = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, 2},
      {{.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, 3},
  };
  for (const Way& way : products) {
    page +=
        fmt::format("| {} | {} | {} | {} |\n", way.text(), way.ranks(), way.zero, letters_of(way));
  }
  return page;
}

TEST(Combinations, AreThoseOfThePage) {
  const std::string path = SHOAL_DOCS "/reference/combinations.md";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = rendered();
  if (text.str() == page || HasFailure()) return;
  const std::string beside = testing::TempDir() + "combinations.md";
  std::ofstream(beside) << page;
  ADD_FAILURE() << path << " is not what the test found: it has written " << beside
                << ", to be looked at and put in its place";
}

}  // namespace
}  // namespace shoal::parallel
