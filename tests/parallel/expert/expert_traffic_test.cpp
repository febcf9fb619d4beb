// The bytes that a step of a mixture of experts sends: rows to their experts and back, what routers
// count, and the gradients of what all ranks hold and of the experts that only some hold. The sums
// are written here from the definitions; those of the planner are compared with them.
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/plan/traffic.h"
#include "shoal/train/router_balance.h"
#include "tests/support/without_shared_memory.h"

namespace shoal::parallel::expert_traffic_test {
namespace {

using model::Keep;
using model::ModelSpec;
using plan::Degrees;

constexpr int kMicroBatches = 2;
constexpr std::int64_t kColumns = 8;

struct Combination {
  Degrees degrees;
  std::int64_t experts = 4;
  std::int64_t visits = 2;   ///< experts of a token
  std::int64_t samples = 2;  ///< of a rank in a micro-batch
  int zero = 0;
  Keep keep = Keep::kEverything;
  bool balanced = false;  ///< by a loss, and by biases that follow the counts of a step
  double capacity = 0;    ///< of an expert, in choices of evenly spread tokens; 0: no limit

  /// Whether tensor ranks divide the columns of a sample, and not the samples.
  bool divides_columns() const { return samples % degrees.tp != 0; }
  std::string text() const {
    return fmt::format(
        "dp {} x {} cp {} tp {} ep {} of {} experts, {} a token, zero {}, keep {}, "
        "capacity {}",
        degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.tp, degrees.ep, experts, visits,
        zero, static_cast<int>(keep), capacity);
  }
};

/// A dense block and two of a mixture with a shared expert. All weights are 0, so that a router
/// finds all experts alike and every token visits the first ones. Every number of ranks here
/// divides each parameter in whole cache lines: nothing is padded.
ModelSpec mixture(const Combination& way) {
  ModelSpec spec = *model::named_model("moe-tiny");
  spec.layers = 3;
  spec.hidden = spec.vocab = 192;
  spec.heads = spec.kv_heads = 4;
  spec.head_size = spec.ffn = spec.shared_ffn = 48;
  spec.dense_layers = 1;
  spec.dense_ffn = 96;
  spec.sequence = 16;
  spec.init_std = 0;
  spec.experts = way.experts;
  spec.experts_per_token = way.visits;
  spec.capacity_factor = way.capacity;
  if (way.balanced) {
    spec.balance_loss = 0.01;
    spec.router_bias = true;
    spec.router_bias_rate = 0.001;
  }
  return spec;
}

/// Whether ranks know of memory that they share.
enum class Memory { kApart, kShared };

/// Bytes that each rank sends in a step which is not the first, whose order of gradients is still
/// to be found.
std::vector<double> sent_in_a_step(const Combination& way, Memory memory) {
  const ModelSpec spec = mixture(way);
  const int size = static_cast<int>(way.degrees.ranks());
  std::vector<double> bytes(static_cast<std::size_t>(size));
  const comm::WorldOptions threads{
      .size = size, .arena = false, .timeout = std::chrono::seconds(60)};
  comm::run_on_threads(threads, [&](const comm::Group& in_memory) {
    const comm::Group world =
        memory == Memory::kShared ? in_memory : comm::without_shared_memory(in_memory);
    const mesh::Mesh mesh(world, way.degrees);
    const BatchShare share(mesh);
    const auto model = nn::make_model(spec);
    ApplyOptions options{.kept =
                             std::vector<Keep>(static_cast<std::size_t>(spec.layers), way.keep)};
    if (way.zero > 0) {
      options.sharding = ShardingOptions{.stage = static_cast<ShardStage>(way.zero),
                                         .reshard_after_forward = false,
                                         .copies = ShardingOptions::Copies::kCopied,
                                         .alone = {}};
    }
    Applied applied = apply(*model, mesh, options);
    applied.reset_parameters(*model, Key(1));
    reduce_gradients(applied, *model, mesh);
    train::RouterBalance balance(spec, applied.owned(*model, mesh), world);
    for (int step = 0; step < 2; ++step) {
      const double before = world.bytes_sent();
      for (int i = 0; i < kMicroBatches; ++i) {
        applied.reduction->begin(i, kMicroBatches);
        nn::LossSink extra;
        nn::Context context;
        context.extra_losses = &extra;
        context.expert_load = balance.load();
        context.samples = at::arange(way.samples, at::kLong);
        const at::Tensor tokens =
            at::arange(way.samples * kColumns, at::kLong).view({way.samples, kColumns});
        context.labels = tokens;
        const at::Tensor inputs = share.cut(tokens, context);
        at::Tensor loss = (*model)(inputs, context);
        for (const at::Tensor& more : extra.losses()) loss = loss + more;
        loss.backward();
        applied.reduction->end_backward();
      }
      applied.reduction->finish();
      applied.reduction->begin_update();
      balance.update();
      applied.reduction->end_update();
      model->clear_gradients();
      bytes[static_cast<std::size_t>(world.rank())] = world.bytes_sent() - before;
    }
  });
  return bytes;
}

/// The share of a buffer that each of n ranks sends to gather it, or to scatter its sum.
double part(std::int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); }

/// The sums for one rank and one step, in bytes.
struct Sums {
  double rows = 0;       ///< to experts and back, and their gradients
  double counts = 0;     ///< how many rows come, what routers count
  double gradients = 0;  ///< and of ZeRO the parameters
  double used = 0;       ///< a byte a parameter: which ones some rank has used
  double attention = 0;  ///< of context ranks
  double tensor = 0;
  double vocabulary = 0;

  double all() const { return rows + counts + gradients + used + attention + tensor + vocabulary; }
};

/// The gradient of a parameter is summed over every axis along which it is replicated. ZeRO
/// scatters the sum, and gathers what was updated.
void add_gradients(const Combination& way, const model::ParameterSpec& parameter, Sums& sums) {
  const Degrees& d = way.degrees;
  const auto named = [&](const char* word) {
    return parameter.name.find(word) != std::string::npos;
  };
  auto elements = static_cast<double>(parameter.count());
  const std::int64_t copies = way.zero > 0 ? d.dp_replicate : 1;
  std::int64_t holders = d.dp() * d.cp * d.tp;
  std::int64_t replicas = copies;
  if (named(".experts.") && d.ep > 1) {
    // All of them shard the state, those of other copies included.
    elements /= static_cast<double>(d.ep);
    holders /= d.ep;
    replicas = 1;
  } else if (!named(".experts.") && !named("router") && !named("shared") && !named("norm")) {
    // Tensor ranks divide attention, dense layers and the vocabulary.
    elements /= static_cast<double>(d.tp);
    holders /= d.tp;
  }
  const std::int64_t shards = holders / replicas;
  const double gathers = way.zero == 3 ? kMicroBatches : 1;
  if (way.zero == 0) {
    sums.gradients += 4 * 2 * part(holders) * elements;
  } else {
    sums.gradients += 4 * part(shards) * elements * (1 + gathers);
    sums.gradients += 4 * 2 * part(replicas) * elements / static_cast<double>(shards);
  }
  sums.used += 2 * part(holders);
}

/// Returns the tokens of a rank that its experts take. All tokens choose the same experts, so that
/// these take the first columns of a sequence.
double taken_tokens(const Combination& way, std::int64_t rank) {
  const Degrees& d = way.degrees;
  const std::int64_t context_rank = rank / d.tp % d.cp;
  std::vector<std::int64_t> columns;
  for (std::int64_t i = 0; i < kColumns; ++i) {
    const std::int64_t chunk = i * 2 * d.cp / kColumns;
    if (chunk == context_rank || chunk == 2 * d.cp - 1 - context_rank) columns.push_back(i);
  }
  if (way.divides_columns()) {
    const std::int64_t each = static_cast<std::int64_t>(columns.size()) / d.tp;
    const auto begin = columns.begin() + rank % d.tp * each;
    columns = {begin, begin + each};
  }
  const double mean = static_cast<double>(way.visits * kColumns) / static_cast<double>(way.experts);
  const double limit =
      way.capacity > 0 ? std::ceil(way.capacity * mean) : static_cast<double>(kColumns);
  const auto taken = std::count_if(columns.begin(), columns.end(), [&](std::int64_t column) {
    return static_cast<double>(column) < limit;
  });
  const std::int64_t samples = way.divides_columns() ? way.samples : way.samples / d.tp;
  return static_cast<double>(taken * samples);
}

Sums expected(const Combination& way, std::int64_t rank) {
  const ModelSpec spec = mixture(way);
  const Degrees& d = way.degrees;
  const auto mixtures = static_cast<double>(spec.layers - spec.dense_layers);
  const auto hidden = static_cast<double>(spec.hidden);
  const auto experts = static_cast<double>(way.experts);
  const double columns = static_cast<double>(kColumns) / static_cast<double>(d.cp);
  const double tokens = static_cast<double>(way.samples) * columns;
  const double forwards = way.keep == Keep::kEverything ? 1 : 2;
  Sums sums;
  // Each of the ranks of ep sends its tokens to the chosen experts of others, and returns what came
  // to its own ones.
  const std::int64_t held = way.experts / d.ep;
  const auto here =
      static_cast<double>(std::clamp<std::int64_t>(way.visits - rank % d.ep * held, 0, held));
  const double there = static_cast<double>(way.visits) - here;
  // Neighbours hold different experts.
  double of_peers = 0;
  for (std::int64_t i = 0; i < d.ep; ++i)
    if (i != rank % d.ep) of_peers += taken_tokens(way, rank - rank % d.ep + i);
  const double travels = (taken_tokens(way, rank) * there + of_peers * here) * hidden;
  sums.rows = kMicroBatches * mixtures * 4 * travels * (forwards + 1);
  // An int64 for each expert, to every other rank.
  sums.counts = kMicroBatches * mixtures * 8 * experts * static_cast<double>(d.ep - 1) * forwards;
  if (way.balanced || way.capacity > 0) {
    const auto samples =
        static_cast<double>(way.divides_columns() ? way.samples : way.samples / d.tp);
    const double chunks = d.cp > 1 ? 2 : 1;
    double numbers = 0;
    // Tensor ranks that divide the columns of a sample tell each other what they chose in each.
    if (way.divides_columns())
      numbers += static_cast<double>(d.tp - 1) * chunks * samples * experts;
    // Context ranks add up their choices and their labels; with a capacity each learns the choices
    // in all chunks.
    if (way.capacity == 0) {
      numbers += 2 * part(d.cp) * samples * (experts + 1);
    } else {
      numbers +=
          static_cast<double>(d.cp - 1) * samples * (chunks * experts + (way.balanced ? 1 : 0));
    }
    sums.counts += kMicroBatches * mixtures * 8 * numbers * forwards;
  }
  if (way.balanced) {
    // Once a step the world adds up the counts of all blocks.
    sums.counts += 2 * part(d.ranks()) * 8 * static_cast<double>(spec.layers) * experts;
  }
  for (const model::ParameterSpec& parameter : model::parameters(spec))
    if (parameter.trained) add_gradients(way, parameter, sums);
  // Keys and values of the others come forward and again backward, and their gradient goes back.
  const double keys = static_cast<double>(spec.kv_heads * spec.head_size / d.tp);
  sums.attention = kMicroBatches * static_cast<double>(spec.layers) * 4 * 2 * keys *
                   static_cast<double>(d.cp - 1) * tokens * (forwards + 2);
  // Rows are gathered in front of attention and of a dense layer, and summed behind it.
  const double divided = static_cast<double>(spec.layers + spec.dense_layers);
  sums.tensor = kMicroBatches * 4 * divided * 4 * tokens * hidden * part(d.tp);
  sums.vocabulary = kMicroBatches * (4 * 4 * tokens * hidden * part(d.tp) +
                                     16 * tokens * static_cast<double>(d.tp - 1));
  return sums;
}

std::map<std::string, double> planned(const Combination& way, Memory memory) {
  const ModelSpec spec = mixture(way);
  plan::Training training;
  training.degrees = way.degrees;
  training.zero_stage = way.zero;
  training.micro_batch = way.samples;
  training.global_batch = way.degrees.dp() * way.samples * kMicroBatches;
  training.sequence = kColumns;
  training.precision = "fp32";
  training.reduce_every_micro_batch = false;
  training.reshard_after_forward = false;
  training.kept.assign(static_cast<std::size_t>(spec.layers), way.keep);
  plan::Cluster cluster = *plan::cluster_preset("cpu");
  cluster.hosts = static_cast<int>(way.degrees.ranks());
  cluster.devices_per_host = 1;
  if (memory == Memory::kShared) std::swap(cluster.hosts, cluster.devices_per_host);
  cluster.runtime = plan::Runtime::kShoal;
  std::map<std::string, double> bytes;
  for (const plan::Traffic& one : plan::traffic(spec, training, cluster))
    bytes[one.technique] = one.bytes;
  return bytes;
}

std::vector<Combination> ways() {
  std::vector<Combination> all;
  // Experts over 2, 3 and 4 data ranks: every token visits as many of each rank, or those of the
  // first ranks alone.
  for (const std::int64_t ranks : {2, 3, 4}) {
    const Degrees degrees{.dp_shard = ranks, .ep = ranks};
    for (const std::int64_t visits : {2 * ranks, std::int64_t{2}, std::int64_t{3}})
      all.push_back({.degrees = degrees, .experts = 2 * ranks, .visits = visits});
  }
  // Folded from data ranks of which several hold the same experts, from context and from tensor
  // ranks; experts that nobody divides.
  for (const Degrees& degrees : std::vector<Degrees>{{.dp_shard = 4, .ep = 2},
                                                     {.dp_replicate = 2, .dp_shard = 2, .ep = 2},
                                                     {.cp = 2, .ep = 2},
                                                     {.dp_shard = 2, .cp = 2, .ep = 4},
                                                     {.dp_shard = 2, .cp = 2, .ep = 2},
                                                     {.tp = 2, .ep = 2},
                                                     {.dp_shard = 2, .tp = 2, .ep = 4},
                                                     {.dp_shard = 2, .tp = 2, .ep = 2},
                                                     {.dp_shard = 2, .tp = 2}}) {
    all.push_back({.degrees = degrees, .visits = 4});
    all.push_back({.degrees = degrees, .visits = 3});
    for (const int zero : {1, 2, 3}) all.push_back({.degrees = degrees, .visits = 4, .zero = zero});
  }
  all.push_back({.degrees = {.dp_shard = 2, .ep = 2}, .visits = 3, .keep = Keep::kInput});
  all.push_back({.degrees = {.cp = 2, .ep = 2}, .visits = 4, .keep = Keep::kInput});
  // All experts are chosen as often, so that their biases stay alike.
  for (const std::int64_t samples : {1, 2}) {
    for (const Degrees& degrees :
         std::vector<Degrees>{{.dp_shard = 2, .tp = 2, .ep = 2}, {.cp = 4, .ep = 4}}) {
      all.push_back({.degrees = degrees,
                     .experts = 2 * degrees.ep,
                     .visits = 2 * degrees.ep,
                     .samples = samples,
                     .balanced = true});
    }
  }
  // A capacity of the first half of a sequence, and one of its first three columns, of which one
  // rank has two and another one. Tensor ranks divide two samples, or the columns of one.
  for (Combination way :
       std::vector<Combination>{{.degrees = {.cp = 4, .ep = 4}},
                                {.degrees = {.dp_shard = 2, .cp = 2, .ep = 4}},
                                {.degrees = {.dp_shard = 2, .tp = 2, .ep = 4}, .samples = 1},
                                {.degrees = {.cp = 2, .tp = 2, .ep = 4}},
                                {.degrees = {.cp = 2, .tp = 2, .ep = 4}, .samples = 1}}) {
    way.visits = 4, way.capacity = 0.5;
    all.push_back(way);
    way.visits = 3, way.capacity = 0.4;
    all.push_back(way);
  }
  all.push_back({.degrees = {.cp = 4, .ep = 4},
                 .visits = 4,
                 .keep = Keep::kInput,
                 .balanced = true,
                 .capacity = 0.25});
  return all;
}

TEST(ExpertTraffic, AStepSendsWhatTheFormulasSay) {
  for (const Combination& way : ways()) {
    const std::vector<double> sent = sent_in_a_step(way, Memory::kApart);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      EXPECT_NEAR(sent[rank], expected(way, static_cast<std::int64_t>(rank)).all(), 1e-6)
          << "rank " << rank << ", " << way.text();
    }
  }
}

// Ranks that share memory send the same but the rows, which each copies from where they lie; keys
// and values are read so too, and of the ring's parts only the gradients travel.
TEST(ExpertTraffic, AStepInPlaceSendsNoRows) {
  for (const Combination& way : ways()) {
    const std::vector<double> sent = sent_in_a_step(way, Memory::kShared);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      Sums sums = expected(way, static_cast<std::int64_t>(rank));
      sums.rows = 0;
      sums.attention /= way.keep == Keep::kEverything ? 3 : 4;
      EXPECT_NEAR(sent[rank], sums.all(), 1e-6) << "rank " << rank << ", " << way.text();
    }
    const auto found = planned(way, Memory::kShared);
    EXPECT_FALSE(found.contains("expert")) << way.text();
  }
}

// The planner counts no bytes of counts and of used parameters, and it takes the experts to be
// chosen evenly. Of a capacity it knows what ranks send in the mean, whichever have the columns
// that experts take.
TEST(ExpertTraffic, ThePlannerCountsAsMuch) {
  for (const Combination& way : ways()) {
    if (way.visits < way.experts || way.balanced) continue;
    const Sums sums = expected(way, 0);
    double rows = 0;
    for (std::int64_t rank = 0; rank < way.degrees.ranks(); ++rank)
      rows += expected(way, rank).rows / static_cast<double>(way.degrees.ranks());
    auto found = planned(way, Memory::kApart);
    const std::string text = way.text();
    EXPECT_NEAR(found["expert"], rows, 1e-6) << text;
    EXPECT_NEAR(found["data"] + found["shard"] + found["replica"], sums.gradients, 1e-6) << text;
    EXPECT_NEAR(found["tensor"], sums.tensor, 1e-6) << text;
    EXPECT_NEAR(found["vocabulary"], sums.vocabulary, 1e-6) << text;
    EXPECT_NEAR(found["context"], sums.attention, 1e-6) << text;
  }
}

}  // namespace
}  // namespace shoal::parallel::expert_traffic_test
