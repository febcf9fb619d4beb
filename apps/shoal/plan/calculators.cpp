#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/shoal/plan/commands.h"
#include "apps/shoal/plan/options.h"
#include "shoal/base/error.h"
#include "shoal/base/units.h"
#include "shoal/plan/calculators/calculations.h"
#include "shoal/plan/calculators/scaling_laws.h"

namespace shoal::apps {
namespace {

using nlohmann::ordered_json;

void print_inference(const model::ModelSpec& spec, const plan::Cluster& cluster,
                     std::int64_t context, const std::string& assumption, bool json) {
  if (spec.family == model::Family::kMlp)
    throw Error(ErrorKind::kUsage, "plan", fmt::format("inference: {} makes no tokens", spec.name));
  const auto cost = plan::inference_cost(spec, cluster, static_cast<double>(context));
  const double capacity = cluster.device.memory_bytes;
  const double price = cluster.device.price_per_hour / 3600;
  // Money for a million tokens; price is that of a device a second.
  const double prompt = price * cost.prefill_s / static_cast<double>(context) * 1e6;
  const double made = price * cost.decode_s * 1e6;
  if (json) {
    ordered_json fields{{"model", spec.name},
                        {"device", cluster.device.name},
                        {"context", context},
                        {"flops_per_token", cost.flops_per_token},
                        {"decode_flops", cost.decode_flops},
                        {"weight_bytes", cost.weight_bytes},
                        {"cache_bytes_per_token", cost.cache_bytes_per_token},
                        {"capacity_bytes", capacity},
                        {"fits", cost.held_bytes <= capacity},
                        {"prefill_s", cost.prefill_s},
                        {"decode_s", cost.decode_s}};
    if (price > 0) fields["cost_per_million"] = {{"prompt_tokens", prompt}, {"made_tokens", made}};
    if (!assumption.empty()) fields["assumption"] = assumption;
    fmt::print("{}\n", fields.dump(2));
    return;
  }
  fmt::print(
      "{}: {:.4g} FLOPs a token, {:.4g} bytes of keys and values a token; {} tokens of prompt in "
      "{:.4g} s, then at least {:.4g} s a token\n",
      spec.name, cost.flops_per_token, cost.cache_bytes_per_token, context, cost.prefill_s,
      cost.decode_s);
  if (price > 0) {
    fmt::print(
        "one sequence at a time, a million tokens of prompt cost {:.4g}, a million that are made "
        "{:.4g}\n",
        prompt, made);
  }
  fmt::print("weights and cache take {:.4g} GiB of the {}'s {:.4g} GiB{}\n", cost.held_bytes / kGiB,
             cluster.device.name, capacity / kGiB,
             cost.held_bytes <= capacity
                 ? ""
                 : ": DOES NOT FIT one device, times are those of one that could hold them");
  if (!assumption.empty()) fmt::print("{}\n", assumption);
}

}  // namespace

void add_scaling_command(CLI::App& plan_command) {
  auto* command = plan_command.add_subcommand(
      "scaling", "Compute-optimal size and tokens for a budget of FLOPs, by published laws");
  struct ScalingOptions {
    double flops = 0;
    bool json = false;
  };
  auto options = std::make_shared<ScalingOptions>();
  command->add_option("--flops", options->flops, "Training FLOPs (6 x parameters x tokens)")
      ->required();
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] {
    ordered_json json = ordered_json::array();
    const auto add = [&](const std::string& name, const std::string& source,
                         const plan::ComputeOptimum& best, const std::string& more) {
      json.push_back({{"law", name},
                      {"source", source},
                      {"parameters", best.parameters},
                      {"tokens", best.tokens}});
      if (best.loss) json.back()["loss"] = *best.loss;
      if (best.loss_error) json.back()["loss_error"] = *best.loss_error;
      if (options->json) return;
      fmt::print("{}: {:.4g} parameters, {:.4g} tokens ({:.3g} a parameter), {}\n", source,
                 best.parameters, best.tokens, best.tokens / best.parameters, more);
    };
    // First the laws of the loss, whose minimum has a closed form, then those that were fitted to
    // the optimum itself.
    for (const plan::ScalingLaw& law : plan::scaling_laws()) {
      const auto best = plan::compute_optimum(law, options->flops);
      add(law.name, law.source, best,
          fmt::format("loss {:.3f}{}", *best.loss,
                      best.loss_error ? fmt::format(" +- {:.3f}", *best.loss_error) : ""));
    }
    for (const plan::AllocationLaw& law : plan::allocation_laws()) {
      const bool range = law.exponent_high > 0;
      add(law.name, law.source, law.at(options->flops),
          fmt::format("parameters grow as C^{:.2f}{}", law.exponent,
                      range
                          ? fmt::format(" ({:.3f} to {:.3f})", law.exponent_low, law.exponent_high)
                          : ""));
      json.back()["exponent"] = law.exponent;
      if (range) {
        json.back()["exponent_low"] = law.exponent_low;
        json.back()["exponent_high"] = law.exponent_high;
      }
    }
    if (options->json) fmt::print("{}\n", json.dump(2));
  });
}

void add_inference_command(CLI::App& plan_command) {
  auto* command =
      plan_command.add_subcommand("inference", "What serving a model costs on one device");
  auto options = std::make_shared<PlanOptions>();
  auto context = std::make_shared<std::int64_t>(4096);
  command->add_option("--model", options->model, "A named size, a job file, or a config.json")
      ->required();
  command->add_option("--cluster", options->cluster, "A preset or a TOML file (a100)");
  command->add_option("--context", *context, "Tokens before the one that is made")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000000));
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, context] {
    print_inference(model_of(*options), cluster_of(*options), *context, assumption_of(*options),
                    options->json);
  });
}

void add_learn_command(CLI::App& plan_command) {
  auto* learn =
      plan_command.add_subcommand("learn", "One-line calculators that show their formula");
  learn->require_subcommand(1);
  struct LearnOptions {
    std::int64_t samples = 0;
    std::int64_t batch = 1;
    std::int64_t ranks = 1;
    std::int64_t epochs = 1;
    std::int64_t layers = 0;
    plan::WorkingSet set;
    plan::NcclQuestion nccl;
    double bytes = 0;
    double latency = 50e-6;
    double bandwidth = 1.25e9;
    double parameters = 0;
    double intensity = 0;
    double peak = 0;
    double inside = 0;
    double input = 0;
    int zero = 0;
  };
  auto options = std::make_shared<LearnOptions>();
  const auto data = [options](CLI::App& command) {
    command.add_option("--samples", options->samples, "Samples of the training set")->required();
    command.add_option("--batch", options->batch, "Samples of one rank's step")->required();
    command.add_option("--ranks", options->ranks, "Ranks")->required();
  };
  const auto link = [options](CLI::App& command) {
    command.add_option("--bytes", options->bytes, "Bytes of the gradients")->required();
    command
        .add_option("--latency", options->latency,
                    "Seconds a message (TCP about 50e-6, RDMA about 2e-6)")
        ->capture_default_str();
    command.add_option("--bandwidth", options->bandwidth, "Bytes a second")->capture_default_str();
  };
  const auto alpha_beta = [options] {
    return plan::AlphaBeta{options->latency, 1 / options->bandwidth, 0};
  };
  auto json = std::make_shared<bool>(false);
  learn->add_flag("--json", *json, "One JSON object: the value and the line");
  // --json may stand before or behind the calculator's name.
  learn->fallthrough();
  const auto print = [json](const plan::Calculation& result) {
    fmt::print("{}\n", *json ? ordered_json{{"value", result.value}, {"line", result.line}}.dump()
                             : result.line);
  };

  auto* iterations = learn->add_subcommand("iterations", "Iterations of an epoch");
  data(*iterations);
  iterations->callback(
      [=] { print(plan::iterations_per_epoch(options->samples, options->batch, options->ranks)); });
  auto* collectives = learn->add_subcommand("collectives", "Collectives of a run");
  data(*collectives);
  collectives->add_option("--epochs", options->epochs, "Epochs")->required();
  collectives->callback([=] {
    print(plan::collectives_per_run(options->samples, options->batch, options->ranks,
                                    options->epochs));
  });
  auto* epoch =
      learn->add_subcommand("epoch-exchange", "Time that an epoch spends in exchange over a link");
  data(*epoch);
  link(*epoch);
  epoch->callback([=] {
    print(plan::exchange_per_epoch(options->samples, options->batch, options->ranks, options->bytes,
                                   alpha_beta()));
  });
  auto* ring = learn->add_subcommand("ring-tree", "Ring against tree");
  ring->add_option("--ranks", options->ranks, "Ranks")->required();
  link(*ring);
  ring->callback(
      [=] { print(plan::ring_against_tree(options->ranks, options->bytes, alpha_beta())); });
  auto* nccl = learn->add_subcommand(
      "nccl", "The fastest algorithm and protocol of a collective by NCCL's model");
  nccl->add_option("--collective", options->nccl.collective,
                   "all_reduce, all_gather or reduce_scatter")
      ->capture_default_str();
  nccl->add_option("--hosts", options->nccl.hosts, "Hosts")->capture_default_str();
  nccl->add_option("--per-host", options->nccl.per_host, "Ranks of each")->capture_default_str();
  nccl->add_option("--bytes", options->nccl.bytes, "Bytes of the whole buffer")->required();
  nccl->add_option("--inside", options->nccl.inside, "Bytes a second of one rank inside its host")
      ->capture_default_str();
  nccl->add_option("--between", options->nccl.between, "Bytes a second of one rank between hosts")
      ->capture_default_str();
  nccl->callback([=] { print(plan::nccl_choice(options->nccl)); });
  auto* zero = learn->add_subcommand("zero", "Model states by ZeRO stage");
  zero->add_option("--parameters", options->parameters, "Parameters")->required();
  zero->add_option("--zero", options->zero, "Stage, 0 to 3")->required();
  zero->add_option("--ranks", options->ranks, "Ranks")->required();
  zero->callback(
      [=] { print(plan::zero_memory(options->parameters, options->zero, options->ranks)); });
  auto* offload = learn->add_subcommand(
      "offload", "Share of its peak that a device reaches on what comes over a link");
  offload->add_option("--intensity", options->intensity, "FLOPs a byte")->required();
  offload->add_option("--bandwidth", options->bandwidth, "Bytes a second")->required();
  offload->add_option("--peak", options->peak, "FLOP/s of the device")->required();
  offload->callback([=] {
    print(plan::offload_efficiency(options->intensity, options->bandwidth, options->peak));
  });
  auto* set = learn->add_subcommand(
      "working-set",
      "What a device needs for its work where states and checkpoints live elsewhere");
  set->add_option("--hidden", options->set.hidden, "Width")->required();
  set->add_option("--heads", options->set.heads, "Heads of attention")->required();
  set->add_option("--layers", options->set.layers, "Blocks")->required();
  set->add_option("--seq-len", options->set.length, "Tokens of a sample")->required();
  set->add_option("--micro-batch", options->set.samples, "Samples")->capture_default_str();
  set->add_option("--blocks", options->set.blocks, "Blocks from one checkpoint to the next")
      ->capture_default_str();
  set->callback([=] { print(plan::offload_working_set(options->set)); });
  auto* attention = learn->add_subcommand(
      "ring-attention", "Tokens a rank from which ring attention hides its exchange");
  attention->add_option("--bandwidth", options->bandwidth, "Bytes a second")->required();
  attention->add_option("--peak", options->peak, "FLOP/s of the device")->required();
  attention->callback(
      [=] { print(plan::ring_attention_tokens(options->bandwidth, options->peak)); });
  auto* pieces =
      learn->add_subcommand("checkpoints", "Into how many recomputed pieces blocks are best cut");
  pieces->add_option("--layers", options->layers, "Blocks")->required();
  pieces->add_option("--inside", options->inside, "Bytes that a block keeps without recomputation")
      ->required();
  pieces->add_option("--input", options->input, "Bytes of its input")->required();
  pieces->callback(
      [=] { print(plan::best_checkpoints(options->layers, options->inside, options->input)); });
}

}  // namespace shoal::apps
