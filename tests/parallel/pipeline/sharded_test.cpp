// Pipelines whose ranks hold shards of their stages (ZeRO 1-3), with tied and untied weights: what
// they learn, and what they send.
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/parallel/apply.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/plan/traffic.h"
#include "shoal/schedule/gathers.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::sharded_test {
namespace {

constexpr int kMicroBatches = 4, kSteps = 3;
constexpr double kRate = 0.1;

struct Combination {
  const char* name;
  bool tied;
  ShardStage stage;
  ShardingOptions::Copies copies;
  int held = 0;
  bool recompute_logits = false;
  bool asks = false;  ///< the pipeline asks whether values are still the same
};

std::string to_string(const Combination& way) {
  return fmt::format("{} tied={} zero={} copies={} held={} twice={}", way.name, way.tied,
                     static_cast<int>(way.stage), static_cast<int>(way.copies), way.held,
                     way.recompute_logits);
}

constexpr const char* kInHalves = "in halves";

/// Returns the table of that name. `kInHalves`, as a schedule file may have it: both stages of a
/// rank run the first two micro-batches forward, then the other two, then all of them backward.
/// Where one stage is held at a time, the last one is released while two of its passes are open.
schedule::Schedule table_of(const std::string& name) {
  if (name != kInHalves) return schedule::make_schedule(name, 2, chunks_of(name), kMicroBatches);
  using enum schedule::Kind;
  schedule::Schedule table{name, kMicroBatches, {0, 1, 0, 1}, {{}, {}}};
  const auto run = [&](schedule::Kind kind, int stage, int begin, int end) {
    for (int micro_batch = begin; micro_batch < end; ++micro_batch)
      table.table[table.rank_of_stage[stage]].push_back({kind, stage, micro_batch});
  };
  for (const int begin : {0, 2})
    for (const int stage : {0, 1, 2, 3}) run(kForward, stage, begin, begin + 2);
  for (const int stage : {3, 2, 1, 0}) run(kBackward, stage, 0, kMicroBatches);
  schedule::add_transfers(table);
  return table;
}

/// The parameters of one rank that trains on everything, after each step of gradient descent.
std::vector<Gradients> train_alone(const model::ModelSpec& spec, std::int64_t rows = kRows) {
  const auto model = nn::make_model(spec);
  model->materialize();
  model->reset_parameters(Key(1));
  std::vector<Gradients> steps;
  for (int step = 0; step < kSteps; ++step) {
    for (const MicroBatch& one : step_of(2 * kMicroBatches, step, rows))
      (*model)(one.input, one.context).backward();
    Gradients values;
    for (const auto& parameter : model->parameters()) {
      parameter->tensor().detach().sub_(parameter->gradient(), kRate);
      values[parameter->name()] = parameter->tensor().detach().clone();
    }
    steps.push_back(std::move(values));
    model->clear_gradients();
  }
  return steps;
}

/// One rank of two stages' ranks, each of two shards.
class ShardedRank {
 public:
  ShardedRank(const comm::Group& world, const Combination& way, const model::ModelSpec& spec)
      : mesh_(world, {.pp = 2, .dp_shard = 2}),
        pipe_(mesh_.along(mesh::Axis::kPipeline)),
        model_(nn::make_model(spec)),
        way_(way) {
    table_ = table_of(way.name);
    if (way.stage == ShardStage::kParameters) schedule::add_gathers(table_, way.held);
    ApplyOptions options;
    options.table = table_;
    options.units_of_stage =
        even_stages(static_cast<std::int64_t>(model_->units().size()), table_.stages());
    options.sharding = {.stage = way.stage,
                        .copies = way.copies,
                        .gathers = ShardingOptions::Gathers::kByCaller,
                        .alone = {}};
    applied_ = apply(*model_, mesh_, options);
    applied_.reset_parameters(*model_, Key(1));
    sharding_ = applied_.sharding;
    pipeline_ = std::make_unique<Pipeline>(pipe_, table_, applied_.stages, events());
  }

  /// Changes what this rank owns, as an update does.
  void change_values() {
    sharding_->begin_update();
    for (const OwnedRange& range : sharding_->owned()) range.values.view({-1}).mul_(1.25);
    sharding_->end_update();
  }
  /// In the next step the values change when the pipeline asks for them, behind the first passes.
  void change_when_asked() { changes_ = true; }
  int asked() const { return asked_; }

  double step(int number, std::int64_t rows = kRows) {
    auto all = step_of(2 * kMicroBatches, number, rows);
    for (MicroBatch& one : all) one.context.recompute_logits = way_.recompute_logits;
    const auto begin = all.begin() + mesh_.coordinate(mesh::Axis::kShard) * kMicroBatches;
    const double loss = pipeline_->run({begin, begin + kMicroBatches});
    sharding_->finish();
    const auto& owned = sharding_->owned();
    std::vector<at::Tensor> gradients = sharding_->gradients();
    applied_.tied->reduce(owned, gradients);
    sharding_->begin_update();
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (owned[i].begin < owned[i].end)
        owned[i].values.view({-1}).sub_(gradients[i].view({-1}), kRate);
    }
    sharding_->end_update();
    model_->clear_gradients();
    return loss;
  }

  /// Returns copies of the values that this rank owns.
  std::vector<at::Tensor> owned_values() const {
    std::vector<at::Tensor> values;
    for (const OwnedRange& range : sharding_->owned()) values.push_back(range.values.clone());
    return values;
  }

  void expect_values(const Gradients& expected, const std::string& where) {
    sharding_->unshard();
    for (const auto& parameter : model_->parameters()) {
      const at::Tensor value = parameter->tensor().detach();
      EXPECT_TRUE(at::allclose(value, expected.at(parameter->name()), 1e-5, 1e-6))
          << where << " " << parameter->name();
    }
    sharding_->reshard();
  }

  /// Copies of one weight must not drift apart by a bit.
  void expect_equal_ties(const std::string& where) {
    sharding_->unshard();
    for (const auto& parameter : model_->parameters()) {
      const comm::Group ties = applied_.tied->holders(*parameter);
      const at::Tensor first = parameter->tensor().detach().clone();
      ties.broadcast(first, 0);
      EXPECT_TRUE(first.equal(parameter->tensor())) << where;
    }
    sharding_->reshard();
  }

 private:
  bool whole(const Stage& stage) const {
    const auto parameters = stage.parameters();
    return std::all_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
      return parameter->tensor().storage().nbytes() > 0;
    });
  }
  PipelineEvents events() {
    const std::vector<Stage>& stages = applied_.stages.local;
    PipelineEvents events = pipeline_events(*sharding_, stages, {}, sharding_);
    const bool apart = way_.copies == ShardingOptions::Copies::kCopied && !way_.tied &&
                       way_.stage == ShardStage::kParameters && way_.held > 0;
    if (way_.asks) {
      events.confirm = [this] {
        ++asked_;
        if (!std::exchange(changes_, false)) return true;
        change_values();
        return false;
      };
    }
    events.action = [this, apart, &stages](const schedule::Action&) {
      if (!apart) return;
      const auto count = std::count_if(stages.begin(), stages.end(),
                                       [this](const Stage& stage) { return whole(stage); });
      EXPECT_LE(count, way_.held) << to_string(way_);
    };
    return events;
  }

  mesh::Mesh mesh_;
  comm::Group pipe_;
  std::shared_ptr<nn::Model> model_;
  Combination way_;
  schedule::Schedule table_;
  Applied applied_;
  Sharding* sharding_ = nullptr;
  std::unique_ptr<Pipeline> pipeline_;
  bool changes_ = false;
  int asked_ = 0;
};

TEST(ShardedPipeline, TrainsAsOneRank) {
  using enum ShardStage;
  using Copies = ShardingOptions::Copies;
  std::vector<Combination> ways;
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "zb-v"}) {
    for (const bool tied : {false, true}) {
      ways.push_back({name, tied, kGradients, Copies::kShared});
      ways.push_back({name, tied, kParameters, Copies::kCopied, 0});
    }
  }
  ways.push_back({"1f1b", true, kOptimizer, Copies::kCopied});
  ways.push_back({"1f1b", true, kParameters, Copies::kShared});
  ways.push_back({"interleaved", false, kParameters, Copies::kCopied, 1});
  ways.push_back({"zb-v", false, kParameters, Copies::kCopied, 1});
  ways.push_back({"zb-v", true, kParameters, Copies::kCopied, 1});
  const std::vector<Gradients> expected[] = {train_alone(tiny_spec("gpt2-tiny", false)),
                                             train_alone(tiny_spec("gpt2-tiny", true))};
  comm::run_on_threads(threads(4), [&](const comm::Group& world) {
    for (const Combination& way : ways) {
      ShardedRank rank(world, way, tiny_spec("gpt2-tiny", way.tied));
      for (int step = 0; step < kSteps; ++step) {
        rank.step(step);
        rank.expect_values(expected[way.tied ? 1 : 0][step],
                           fmt::format("{} step {}", to_string(way), step));
      }
      rank.expect_equal_ties(to_string(way));
    }
  });
}

// A head of 1,040 rows saves its matrix in the forward pass and computes the logits again with it
// in the backward pass. In between it stays gathered, or is released and gathered anew.
TEST(ShardedPipeline, AHeadRecomputesItsLogitsFromAGatheredMatrix) {
  using enum ShardStage;
  using Copies = ShardingOptions::Copies;
  constexpr std::int64_t kManyRows = 130;
  const std::vector<Combination> ways{{"gpipe", false, kParameters, Copies::kCopied, 0, true},
                                      {"gpipe", true, kParameters, Copies::kShared, 0, true},
                                      {kInHalves, false, kParameters, Copies::kCopied, 1, true}};
  // Two blocks: a unit for each of four stages.
  const auto spec_of = [](bool tied) {
    model::ModelSpec spec = tiny_spec("gpt2-tiny", tied);
    spec.layers = 2;
    return spec;
  };
  const std::vector<Gradients> expected[] = {train_alone(spec_of(false), kManyRows),
                                             train_alone(spec_of(true), kManyRows)};
  comm::run_on_threads(threads(4), [&](const comm::Group& world) {
    for (const Combination& way : ways) {
      ShardedRank rank(world, way, spec_of(way.tied));
      for (int step = 0; step < 2; ++step) {
        rank.step(step, kManyRows);
        rank.expect_values(expected[way.tied ? 1 : 0][step],
                           fmt::format("{} step {}", to_string(way), step));
      }
    }
  });
}

// Values change after the first forward passes: what was gathered for these is gathered again.
// Losses and weights are those of ranks whose values had changed before the step.
TEST(ShardedPipeline, PassesRunAgainWithStagesThatAreGatheredAgain) {
  using enum ShardStage;
  using Copies = ShardingOptions::Copies;
  comm::run_on_threads(threads(4), [&](const comm::Group& world) {
    for (const char* name : {"1f1b", "zb-h2", "interleaved", "zb-v", kInHalves}) {
      for (const Copies copies : {Copies::kCopied, Copies::kShared}) {
        for (const int held : {0, 1}) {
          Combination way{name, false, kParameters, copies, held};
          const model::ModelSpec spec = tiny_spec("gpt2-tiny", false);
          ShardedRank expected(world, way, spec);
          way.asks = true;
          ShardedRank found(world, way, spec);
          for (int step = 0; step < kSteps; ++step) {
            if (step == 1) {
              expected.change_values();
              found.change_when_asked();
            }
            const double loss = expected.step(step);
            EXPECT_EQ(found.step(step), loss) << to_string(way) << " step " << step;
            EXPECT_EQ(found.asked(), step + 1) << to_string(way);
          }
          const auto values = expected.owned_values();
          const auto others = found.owned_values();
          ASSERT_EQ(values.size(), others.size());
          for (std::size_t i = 0; i < values.size(); ++i)
            EXPECT_TRUE(values[i].equal(others[i])) << to_string(way) << " range " << i;
        }
      }
    }
  });
}

/// Sizes of which two ranks have whole cache lines each: nothing is padded.
model::ModelSpec lined_spec() {
  model::ModelSpec spec = tiny_spec("llama-tiny", false);
  spec.hidden = spec.vocab = 32;
  spec.head_size = 16;
  spec.ffn = 64;
  return spec;
}

/// What a rank has and does in a step, counted along its list.
struct Counts {
  double parameters = 0;  ///< elements of its stages
  double gathered = 0;    ///< elements, each as often as they are gathered
  double tensors = 0;     ///< parameters of its stages
  double messages = 0;
};

/// Walks along a table without gathers. A rank that holds one of its two stages at a time gathers
/// one whenever it goes on with the other one; one that holds both gathers each once.
Counts counts_of(const model::ModelSpec& spec, const Combination& way, int rank) {
  const auto table = schedule::make_schedule(way.name, 2, chunks_of(way.name), kMicroBatches);
  const auto sizes = even_stages(spec.layers + 2, table.stages());
  std::map<int, double> elements;
  Counts counts;
  for (const model::ParameterSpec& parameter : model::parameters(spec)) {
    int stage = 0;
    for (std::int64_t last = sizes[0]; parameter.unit >= last; last += sizes[++stage]) {
    }
    if (table.rank_of_stage[stage] != rank) continue;
    elements[stage] += static_cast<double>(parameter.count());
    counts.parameters += static_cast<double>(parameter.count());
    ++counts.tensors;
  }
  int at_hand = -1;
  for (const schedule::Action& action : table.table[rank]) {
    using enum schedule::Kind;
    if (action.kind == kSendActivation || action.kind == kSendGradient) ++counts.messages;
    const bool reads =
        action.kind == kForward || action.kind == kBackward || action.kind == kInputGradient;
    if (way.held != 1 || !reads || action.stage == at_hand) continue;
    counts.gathered += elements.at(action.stage);
    at_hand = action.stage;
  }
  if (way.held != 1) counts.gathered = counts.parameters;
  return counts;
}

/// The planner's bytes of a technique.
double planned_bytes(const model::ModelSpec& spec, const Combination& way, const char* technique) {
  plan::Training training;
  training.degrees = {.pp = 2, .dp_shard = 2};
  training.zero_stage = static_cast<int>(way.stage);
  training.schedule = way.name;
  training.virtual_stages = std::string(way.name) == "interleaved" ? 2 : 1;
  training.gathered_stages = way.held;
  training.micro_batch = kRows;
  training.global_batch = 2 * kRows * kMicroBatches;
  training.sequence = kColumns;
  training.precision = "fp32";
  training.stage_layers = even_stages(spec.layers + 2, training.stages());
  --training.stage_layers.front(), --training.stage_layers.back();
  const plan::Cluster hosts{.hosts = 4, .runtime = plan::Runtime::kShoal};
  for (const plan::Traffic& one : plan::traffic(spec, training, hosts))
    if (one.technique == technique) return one.bytes;
  return 0;
}

// Of two shards each rank sends its own, once for every gather, and half of the gradients once a
// step, with a byte for each parameter that says who has used it.
TEST(ShardedPipeline, SendsWhatThePlannerCounts) {
  using enum ShardStage;
  using Copies = ShardingOptions::Copies;
  std::vector<Combination> ways;
  for (const char* name : {"1f1b", "interleaved", "zb-v"}) {
    for (const ShardStage stage : {kOptimizer, kGradients, kParameters})
      ways.push_back({name, false, stage, Copies::kCopied});
    for (const int held : {1, 2}) ways.push_back({name, false, kParameters, Copies::kCopied, held});
  }
  const model::ModelSpec spec = lined_spec();
  comm::WorldOptions apart = threads(4);
  apart.arena = false;
  comm::run_on_threads(apart, [&](const comm::Group& world) {
    for (const Combination& way : ways) {
      ShardedRank rank(world, way, spec);
      rank.step(0);  // finds the order of gradients
      const double before = world.bytes_sent();
      rank.step(1);
      const double sent = world.bytes_sent() - before;
      double busiest = 0;
      double most_messages = 0;
      const auto shards = [](const Counts& counts) {
        return 4 * (counts.parameters + counts.gathered) / 2;
      };
      const double message = 4.0 * kRows * kColumns * static_cast<double>(spec.hidden);
      for (const int stage_rank : {0, 1}) {
        const Counts counts = counts_of(spec, way, stage_rank);
        busiest = std::max(busiest, shards(counts));
        most_messages = std::max(most_messages, counts.messages);
        if (stage_rank != world.rank() / 2) continue;
        EXPECT_EQ(sent, shards(counts) + counts.tensors + counts.messages * message)
            << to_string(way) << ", rank " << world.rank();
      }
      EXPECT_EQ(planned_bytes(spec, way, "shard"), busiest) << to_string(way);
      EXPECT_EQ(planned_bytes(spec, way, "pipeline"), most_messages * message) << to_string(way);
    }
  });
}

}  // namespace
}  // namespace shoal::parallel::sharded_test
