#include "shoal/plan/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "shoal/base/error.h"
#include "shoal/plan/division_rules.h"
#include "shoal/schedule/generators.h"

namespace shoal::plan {
namespace {

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorKind::kConfig, "plan", what); }

void require(bool holds, const char* option, std::int64_t value, const std::string& rule) {
  if (!holds) reject(fmt::format("{} = {}: {}", option, value, rule));
}

/// Requires that a rule of division_rules.h holds.
void require_rule(const char* option, std::int64_t value, const std::string& broken) {
  require(broken.empty(), option, value, broken);
}

void require_range(const char* option, std::int64_t value, std::int64_t least,
                   std::int64_t most = 10000000) {
  require(value >= least && value <= most, option, value,
          fmt::format("must lie between {} and {}", least, most));
}

/// Requires that a degree divides a count of the model, and proposes the nearest that do.
void require_divisor(const char* option, std::int64_t value, const char* what, std::int64_t count) {
  if (count % value == 0) return;  // a search asks for millions of plans: no text for those
  require(
      false, option, value,
      fmt::format("must divide {} = {}, as {} does", what, count, nearest_divisors(count, value)));
}

void validate_mesh(const ModelSpec& spec, const Training& training) {
  const Degrees& degrees = training.degrees;
  validate_degrees(spec, degrees, training.virtual_stages, training.expert_tensor,
                   training.division != nullptr);
  if (spec.family != Family::kTransformer) return;
  require_rule("cp", degrees.cp, context_rule(degrees.cp, training.length(spec)));
  if (training.ulysses) require_rule("cp", degrees.cp, whole_heads_rule(spec, degrees));
}

/// Requires that the table of a file is one of this mesh, batch and model.
void validate_table(const ModelSpec& spec, const Training& training) {
  const schedule::Schedule& table = *training.table;
  const std::int64_t pp = training.degrees.pp;
  require(table.ranks() == pp, "pp", pp,
          fmt::format("schedule {} is of {} ranks", table.name, table.ranks()));
  const std::int64_t m = training.micro_batches();
  if (table.micro_batches != m) {
    reject(fmt::format("schedule {}: it has {} micro-batches, and a step has {}", table.name,
                       table.micro_batches, m));
  }
  require_rule("pp", pp, stages_rule(spec.layers + 2, training.stages()));
}

void validate_schedule(const ModelSpec& spec, const Training& training) {
  const auto names = schedule::schedule_names();
  if (std::find(names.begin(), names.end(), training.schedule) == names.end()) {
    reject(
        fmt::format("schedule = {}: must be one of {}", training.schedule, fmt::join(names, ", ")));
  }
  const Degrees& degrees = training.degrees;
  if (training.virtual_stages > 1 && training.schedule != "interleaved") {
    reject(fmt::format("vpp = {}: only the interleaved schedule has virtual stages, not {}",
                       training.virtual_stages, training.schedule));
  }
  if (degrees.pp == 1) return;
  require_rule("pp", degrees.pp, stages_rule(spec.layers + 2, training.stages()));
  const std::int64_t m = training.micro_batches();
  if (training.virtual_stages > 1) {
    require(m % degrees.pp == 0, "vpp", training.virtual_stages,
            fmt::format(
                "the interleaved schedule needs a multiple of pp = {} micro-batches; there are {}",
                degrees.pp, m));
  }
  if (training.schedule == "dualpipe-v") {
    require(m >= 2 * degrees.pp, "pp", degrees.pp,
            fmt::format("dualpipe-v needs at least 2 pp micro-batches; there are {}", m));
  }
}

void validate_pipeline(const ModelSpec& spec, const Training& training) {
  if (training.table) {
    validate_table(spec, training);
  } else {
    validate_schedule(spec, training);
  }
  if (training.degrees.pp == 1 || training.stage_layers.empty()) return;
  require(static_cast<std::int64_t>(training.stage_layers.size()) == training.stages(),
          "stage_layers", static_cast<std::int64_t>(training.stage_layers.size()),
          fmt::format("must name the blocks of each of {} stages", training.stages()));
  const std::int64_t sum =
      std::accumulate(training.stage_layers.begin(), training.stage_layers.end(), std::int64_t{0});
  require(sum == spec.layers, "stage_layers", sum,
          fmt::format("must add up to the model's {} blocks", spec.layers));
  for (const std::int64_t blocks : training.stage_layers)
    require(blocks >= 0, "stage_layers", blocks, "must not be negative");
}

/// The rules of the default recipe.
void validate_tensor_degree(const ModelSpec& spec, const Degrees& degrees) {
  // Tensor ranks hold whole heads: attention needs no exchange inside a head.
  require_divisor("tp", degrees.tp, "heads", spec.heads);
  // With more ranks than key-value heads some ranks hold the same one.
  require(spec.kv_heads % degrees.tp == 0 || degrees.tp % spec.kv_heads == 0, "tp", degrees.tp,
          fmt::format("must divide kv_heads = {}, as {} does, or be a multiple of them",
                      spec.kv_heads, nearest_divisors(spec.kv_heads, degrees.tp)));
  if (spec.experts == 0) {
    require_divisor("tp", degrees.tp, "ffn", spec.ffn);
  } else if (spec.dense_layers > 0) {
    require_divisor("tp", degrees.tp, "dense_ffn", spec.dense_ffn);
  }
}

}  // namespace

model::BlockDivision Training::division_of(std::int64_t block) const {
  const MicroBatch batch{.samples = micro_batch, .tensor_ranks = degrees.tp, .division = division};
  return batch.division_of(block);
}

void validate_degrees(const ModelSpec& spec, const Degrees& degrees, std::int64_t virtual_stages,
                      std::int64_t expert_tensor, bool by_recipe) {
  for (const auto& [option, value] : {std::pair{"dp_replicate", degrees.dp_replicate},
                                      {"dp_shard", degrees.dp_shard},
                                      {"tp", degrees.tp},
                                      {"pp", degrees.pp},
                                      {"vpp", virtual_stages},
                                      {"cp", degrees.cp},
                                      {"ep", degrees.ep},
                                      {"etp", expert_tensor}})
    require_range(option, value, 1);
  // In floating point: the product of five degrees may overflow 64 bits.
  double devices = 1;
  for (const std::int64_t ranks :
       {degrees.dp_replicate, degrees.dp_shard, degrees.tp, degrees.pp, degrees.cp})
    devices *= static_cast<double>(ranks);
  if (devices > 1e7)
    reject(fmt::format("devices = {:.4g}: dp x tp x pp x cp must be at most 10000000", devices));
  const std::int64_t dense = degrees.tp * degrees.cp * degrees.dp();
  require(
      dense % (degrees.ep * expert_tensor) == 0, "ep", degrees.ep,
      fmt::format(
          "ep x etp = {} must divide tp x cp x dp = {}, as {} does: experts are folded into the "
          "same devices",
          degrees.ep * expert_tensor, dense, nearest_divisors(dense, degrees.ep * expert_tensor)));
  if (spec.family != Family::kTransformer) {
    for (const auto& [option, value] : {std::pair{"tp", degrees.tp},
                                        {"pp", degrees.pp},
                                        {"cp", degrees.cp},
                                        {"ep", degrees.ep}}) {
      require(value == 1, option, value,
              "a multi-layer perceptron is planned with data parallelism and ZeRO only");
    }
    return;
  }
  if (!by_recipe) validate_tensor_degree(spec, degrees);
  require_rule("ep", degrees.ep, experts_rule(spec, degrees.ep));
  if (spec.experts == 0) {
    require(expert_tensor == 1, "etp", expert_tensor, "the model has no experts");
  } else {
    require_divisor("etp", expert_tensor, "ffn", spec.ffn);
  }
}

std::optional<Precision> precision(std::string_view name, Optimizer optimizer) {
  // Bytes of parameter, gradient, master and moments; see Precision in the header for the systems
  // behind the names.
  const auto with = [&](ElementType compute, double activation, StateBytes state) {
    // Adam has two moments, momentum one, plain SGD none.
    if (optimizer == Optimizer::kMomentum) state.moments /= 2;
    if (optimizer == Optimizer::kSgd) state.moments = 0;
    return Precision{std::string(name), compute, activation,
                     compute == ElementType::kF8E4M3 ? 1 : activation, state};
  };
  if (name == "fp32") return with(ElementType::kF32, 4, {4, 4, 0, 8});
  if (name == "mixed") return with(ElementType::kBF16, 2, {2, 2, 4, 8});
  if (name == "bf16") return with(ElementType::kBF16, 2, {2, 4, 4, 8});
  if (name == "fp16") return with(ElementType::kF16, 2, {2, 2, 8, 8});
  if (name == "bf16-moments") return with(ElementType::kBF16, 2, {2, 4, 4, 4});
  if (name == "fp8") return with(ElementType::kF8E4M3, 2, {2, 4, 4, 8});
  return std::nullopt;
}

std::vector<std::string> precision_names() {
  return {"fp32", "mixed", "bf16", "fp16", "bf16-moments", "fp8"};
}

std::int64_t Training::chunks() const {
  if (degrees.pp > 1 && (schedule == "zb-v" || schedule == "dualpipe-v")) return 2;
  return virtual_stages;
}

void validate(const ModelSpec& spec, const Training& training) {
  validate(spec);
  require_range("zero", training.zero_stage, 0, 3);
  require_range("micro-batch", training.micro_batch, 1);
  require_range("global-batch", training.global_batch, 1, std::int64_t{1} << 40);
  require_range("seq-len", training.sequence, 0, std::int64_t{1} << 31);
  require_range("prefetch", training.gather_ahead, 0, 1000);
  if (spec.family == Family::kTransformer && spec.positions == Positions::kLearned) {
    require(training.length(spec) <= spec.sequence, "seq-len", training.length(spec),
            fmt::format("the model has {} learned positions", spec.sequence));
  }
  if (!precision(training.precision)) {
    reject(fmt::format("precision = {}: must be one of {}", training.precision,
                       fmt::join(precision_names(), ", ")));
  }
  // ZeRO++ is about the gathers of stage 3, and from 16 bits to 8.
  if (training.zero_plus_plus) {
    require(training.zero_stage == 3, "zero", training.zero_stage, "ZeRO++ is a way of stage 3");
    if (precision(training.precision)->state.parameter != 2) {
      reject(fmt::format("precision = {}: ZeRO++ gathers 16-bit parameters in 8 bits",
                         training.precision));
    }
  }
  if (training.offload_parameters) {
    require(training.zero_stage == 3, "zero", training.zero_stage,
            "parameters are offloaded shard by shard: stage 3");
    if (!training.offload_optimizer) {
      reject(
          "offload-parameters: the optimizer that updates them must be offloaded too "
          "(offload-optimizer)");
    }
  }
  if (!(training.expert_imbalance >= 1))
    reject(fmt::format("expert-imbalance = {}: must be at least 1", training.expert_imbalance));
  validate_mesh(spec, training);
  // Every data rank runs equally many whole micro-batches.
  const std::int64_t per_round = training.degrees.dp() * training.micro_batch;
  require(training.global_batch % per_round == 0, "global-batch", training.global_batch,
          fmt::format("must be a multiple of dp x micro-batch = {}", per_round));
  if (spec.family == Family::kTransformer) validate_pipeline(spec, training);
}

void validate(const ModelSpec& spec, const Training& training, Runtime runtime) {
  validate(spec, training);
  if (training.division && runtime != Runtime::kShoal)
    reject("layouts: Shoal alone divides by recipes, and the cluster runs other software");
  if (runtime != Runtime::kShoal || spec.family != Family::kTransformer) return;
  require_rule("ep", training.degrees.ep, expert_copy_rule(training.degrees));
}

std::vector<std::int64_t> stage_blocks(const ModelSpec& spec, const Training& training) {
  if (!training.stage_layers.empty()) return training.stage_layers;
  const std::int64_t stages = training.stages();
  std::vector<std::int64_t> blocks(stages, spec.layers / stages);
  // The middle stages take the remainder, so that embedding and head are on the smaller stages.
  const std::int64_t left = spec.layers % stages;
  const std::int64_t first = (stages - left) / 2;
  for (std::int64_t i = 0; i < left; ++i) ++blocks[first + i];
  return blocks;
}

double expert_copies(const Training& training) {
  const Degrees& degrees = training.degrees;
  const std::int64_t same =
      training.sequence_parallel ? 1 : std::min(degrees.tp, training.expert_tensor);
  // Rows that a tensor rank of the dense part holds anyway need not be sent.
  return static_cast<double>(training.expert_tensor) / static_cast<double>(same);
}

std::int64_t rank_of_stage(const Training& training, std::int64_t stage) {
  if (training.table) return training.table->rank_of_stage[static_cast<std::size_t>(stage)];
  const std::int64_t p = training.degrees.pp;
  // The second half of a V runs back over the ranks: the last stage lies beside the first.
  if (training.schedule == "zb-v" || training.schedule == "dualpipe-v")
    return stage < p ? stage : 2 * p - 1 - stage;
  return stage % p;
}

}  // namespace shoal::plan
