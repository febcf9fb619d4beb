#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shoal/base/units.h"
#include "shoal/plan/logits_recomputation.h"
#include "shoal/plan/plan.h"

namespace shoal::plan {
namespace {

constexpr const char* kRecompute[] = {"none", "selective", "full"};

/// The unit of a table of memory: of GiB small models would have zeros alone.
struct Unit {
  double bytes;
  const char* name;
  int digits;  ///< behind the point
};

Unit unit_of(double peak_bytes) {
  if (peak_bytes >= kGiB) return {kGiB, "GiB", 1};
  return {kMB, "MB", 0};
}

void add_memory(const Plan& plan, std::string& text) {
  const Unit unit = unit_of(plan.peak().all());
  text += fmt::format("\nMemory of one device, {} (of {:.{}f})\n", unit.name,
                      plan.capacity_bytes / unit.bytes, unit.digits);
  text += fmt::format("  {:<5} {:<22} {:>8} {:>9} {:>9} {:>11} {:>8} {:>7} {:>9} {:>7} {:>8}\n",
                      "stage", "when", "weights", "gradients", "optimizer", "activations",
                      "gathered", "buffers", "workspace", "staging", "all");
  // The middle ranks of a deep pipeline are alike.
  const std::size_t ranks = plan.memory.size();
  for (std::size_t i = 0; i < ranks; ++i) {
    if (ranks > 6 && i > 1 && i + 2 < ranks) continue;
    for (const MemoryPhase& phase : plan.memory[i].phases) {
      const MemoryUse& use = phase.use;
      text += fmt::format(
          "  {:<5} {:<22} {:>8.2f} {:>9.2f} {:>9.2f} {:>11.2f} {:>8.2f} {:>7.2f} {:>9.2f} {:>7.2f} "
          "{:>8.2f}\n",
          plan.memory[i].rank, phase.name, use.parameters / unit.bytes, use.gradients / unit.bytes,
          use.optimizer / unit.bytes, use.activations / unit.bytes, use.gathered / unit.bytes,
          use.communication / unit.bytes, use.workspace / unit.bytes, use.staging / unit.bytes,
          use.all() / unit.bytes);
    }
  }
  text += fmt::format("  peak {:.2f} {}: {}\n", plan.peak().all() / unit.bytes, unit.name,
                      plan.fits() ? "fits" : "DOES NOT FIT");
  if (plan.host_bytes > 0) {
    text += fmt::format("  offloaded to a host: {:.2f} GiB of its {:.2f} GiB\n",
                        plan.host_bytes / kGiB, plan.cluster.host.memory_bytes / kGiB);
  }
  if (plan.fits()) return;
  if (plan.remedies.empty()) text += "  no single change makes it fit: more devices, or --search\n";
  for (const std::string& remedy : plan.remedies)
    text += fmt::format("  would fit with {}\n", remedy);
}

void add_time(const Plan& plan, std::string& text) {
  const StepTime& time = plan.time;
  text += "\nOne step\n";
  text += fmt::format(
      "  model FLOPs      {:.4g} (all of attention counted; {:.4g} at its causal half)\n",
      plan.flops.model, plan.flops.model_causal);
  text += fmt::format("  hardware FLOPs   {:.4g} (with what is recomputed, {})\n",
                      plan.flops.hardware, kRecompute[static_cast<int>(plan.training.recompute)]);
  text += fmt::format(
      "  time             {:.4g} s: pipeline {:.4g}, exposed gradient and parameter exchange "
      "{:.4g}, optimizer {:.4g}\n",
      time.all(), time.pipeline, time.data_exposed, time.optimizer);
  text += fmt::format(
      "  in the pipeline  exchange {:.4g} s, recomputation {:.4g} s, bubbles {:.4g} s ({:.1f} %)\n",
      time.communication, time.recomputed, time.bubble, 100 * time.bubble_fraction());
  text += fmt::format(
      "  utilisation      MFU {:.1f} % (causal {:.1f} %), HFU {:.1f} %, {:.1f} TFLOP/s a device\n",
      100 * plan.mfu, 100 * plan.mfu_causal, 100 * plan.hfu,
      plan.flops.model / time.all() / static_cast<double>(plan.cluster.devices()) / 1e12);
  text += fmt::format("  limited by       {}\n", plan.limited_by);
  // Systems of the literature have no kernels of their own here.
  if (plan.cluster.runtime == Runtime::kShoal) {
    text += fmt::format("  predicted from   {}{}\n",
                        time.of_measured_kernels
                            ? "measured kernels of Shoal"
                            : "published formulas: no kernels were measured for such a step",
                        plan.training.division && !time.of_measured_kernels
                            ? "; they divide all blocks as the default recipe does"
                            : "");
  }
  if (plan.traffic.empty()) return;
  text += "  one device sends";
  for (const Traffic& one : plan.traffic) {
    text += fmt::format(" {} {:.4g} GB{}", one.technique, one.bytes / 1e9,
                        one.between_bytes > 0
                            ? fmt::format(" ({:.4g} between hosts)", one.between_bytes / 1e9)
                            : "");
  }
  text += "\n";
}

void add_run(const RunEstimate& run, std::string& text) {
  text += "\nThe run\n";
  text += fmt::format(
      "  {:.4g} tokens in {:.4g} steps: {:.4g} days, {:.4g} device hours, {:.4g} kWh, cost "
      "{:.4g}\n",
      run.tokens, run.steps, run.days, run.device_hours, run.energy_kwh, run.cost);
  text += fmt::format("  goodput {:.2f} % with a checkpoint of {:.4g} GB every {:.4g} s (Daly)\n",
                      100 * run.goodput, run.checkpoint_bytes / 1e9, run.checkpoint_interval_s);
  text += fmt::format("  {:.4g} GB of data, read at {:.4g} MB/s\n", run.data_bytes / 1e9,
                      run.read_bytes_per_s / 1e6);
}

nlohmann::ordered_json json_of(const MemoryUse& use) {
  return {{"parameters", use.parameters},
          {"gradients", use.gradients},
          {"optimizer", use.optimizer},
          {"activations", use.activations},
          {"gathered", use.gathered},
          {"communication", use.communication},
          {"workspace", use.workspace},
          {"staging", use.staging},
          {"all", use.all()}};
}

}  // namespace

std::string describe_mesh(const Training& training) {
  const Degrees& degrees = training.degrees;
  std::string text = fmt::format("dp {} x tp {} x pp {}", degrees.dp(), degrees.tp, degrees.pp);
  if (degrees.cp > 1) text += fmt::format(" x cp {}", degrees.cp);
  if (degrees.ep > 1) text += fmt::format(", ep {}", degrees.ep);
  if (training.virtual_stages > 1)
    text += fmt::format(", {} stages a rank", training.virtual_stages);
  if (training.exchange) {
    text += fmt::format(", {} members that exchange parameters every {} steps",
                        degrees.dp_replicate, training.exchange->every);
  }
  return text;
}

std::string to_text(const Plan& plan) {
  const Training& training = plan.training;
  std::string text = fmt::format("{}: {} parameters ({:.4g} billion)\n",
                                 plan.spec.name.empty() ? "the model" : plan.spec.name,
                                 plan.parameters, static_cast<double>(plan.parameters) / 1e9);
  text += fmt::format("{} {} devices on {} host{}: {}\n", plan.cluster.devices(),
                      plan.cluster.device.name, plan.cluster.hosts,
                      plan.cluster.hosts == 1 ? "" : "s", describe_mesh(training));
  if (plan.cluster.name == "cpu" && plan.cluster.kernels.empty())
    text += "cpu is a made-up host, not this machine: `shoal plan calibrate` measures yours\n";
  const std::string shards = training.zero_stage > 0 && training.degrees.dp_replicate > 1
                                 ? fmt::format(" over {} ranks", training.degrees.shard_ranks())
                                 : "";
  text += fmt::format(
      "ZeRO {}{}, {}, recomputation {}, schedule {}, {} micro-batches of {}, global batch {}",
      training.zero_stage, shards, training.precision,
      kRecompute[static_cast<int>(training.recompute)], training.schedule_name(),
      training.micro_batches(), training.micro_batch, training.global_batch);
  text += plan.spec.family == Family::kMlp
              ? "\n"
              : fmt::format(" x {} tokens\n", training.length(plan.spec));
  if (plan.recompute_logits) {
    const std::string head = describe_head(plan.spec, training, *plan.recompute_logits);
    if (!head.empty()) text += fmt::format("head: {}\n", head);
  }
  add_memory(plan, text);
  add_time(plan, text);
  if (plan.run) add_run(*plan.run, text);
  return text;
}

std::string to_json(const Plan& plan) {
  const MemoryUse& peak = plan.peak();
  nlohmann::ordered_json json;
  json["model"] = plan.spec.name;
  json["cluster"] = plan.cluster.name;
  json["devices"] = plan.cluster.devices();
  const Degrees& degrees = plan.training.degrees;
  json["mesh"] = {{"dp", degrees.dp()},
                  {"tp", degrees.tp},
                  {"pp", degrees.pp},
                  {"vpp", plan.training.virtual_stages},
                  {"cp", degrees.cp},
                  {"ep", degrees.ep},
                  {"etp", plan.training.expert_tensor},
                  {"shard", degrees.shard_ranks()}};
  json["zero"] = plan.training.zero_stage;
  json["precision"] = plan.training.precision;
  json["recompute"] = kRecompute[static_cast<int>(plan.training.recompute)];
  json["schedule"] = plan.training.schedule_name();
  json["micro_batch"] = plan.training.micro_batch;
  json["global_batch"] = plan.training.global_batch;
  json["seq_len"] = plan.training.length(plan.spec);
  json["parameters"] = plan.parameters;
  json["model_state_bytes"] = peak.states();
  json["activation_bytes"] = plan.activation_bytes();
  json["peak_bytes"] = peak.all();
  json["capacity_bytes"] = plan.capacity_bytes;
  json["host_bytes"] = plan.host_bytes;
  json["fits"] = plan.fits();
  json["remedies"] = plan.remedies;
  // Said in the output: papers count either way, and utilisations differ by it.
  json["flops_convention"] = "all of attention counted; *_causal counts its causal half";
  json["model_flops"] = plan.flops.model;
  json["model_flops_causal"] = plan.flops.model_causal;
  json["hardware_flops"] = plan.flops.hardware;
  json["hardware_flops_causal"] = plan.flops.hardware_causal;
  json["traffic_bytes"] = nlohmann::ordered_json::object();
  for (const Traffic& one : plan.traffic) json["traffic_bytes"][one.technique] = one.bytes;
  json["traffic_between_hosts"] = nlohmann::ordered_json::object();
  for (const Traffic& one : plan.traffic)
    json["traffic_between_hosts"][one.technique] = one.between_bytes > 0;
  json["traffic_between_hosts_bytes"] = nlohmann::ordered_json::object();
  for (const Traffic& one : plan.traffic)
    json["traffic_between_hosts_bytes"][one.technique] = one.between_bytes;
  json["bubble_fraction"] = plan.time.bubble_fraction();
  json["step_time_s"] = plan.time.all();
  json["step_time_parts_s"] = {
      {"pipeline", plan.time.pipeline},           {"bubble", plan.time.bubble},
      {"communication", plan.time.communication}, {"recomputed", plan.time.recomputed},
      {"data_exposed", plan.time.data_exposed},   {"data_hidden", plan.time.data_hidden},
      {"optimizer", plan.time.optimizer}};
  json["step_time_of_measured_kernels"] = plan.time.of_measured_kernels;
  json["mfu"] = plan.mfu;
  json["mfu_causal"] = plan.mfu_causal;
  json["hfu"] = plan.hfu;
  json["limited_by"] = plan.limited_by;
  for (const RankMemory& rank : plan.memory) {
    nlohmann::ordered_json phases = nlohmann::ordered_json::object();
    for (const MemoryPhase& phase : rank.phases) phases[phase.name] = json_of(phase.use);
    json["memory"].push_back({{"stage", rank.rank}, {"phases", phases}});
  }
  if (plan.run) {
    const RunEstimate& run = *plan.run;
    json["run"] = {{"tokens", run.tokens},
                   {"steps", run.steps},
                   {"days", run.days},
                   {"device_hours", run.device_hours},
                   {"energy_kwh", run.energy_kwh},
                   {"cost", run.cost},
                   {"goodput", run.goodput},
                   {"checkpoint_interval_s", run.checkpoint_interval_s},
                   {"checkpoint_bytes", run.checkpoint_bytes},
                   {"data_bytes", run.data_bytes},
                   {"read_bytes_per_s", run.read_bytes_per_s}};
  }
  return json.dump(2);
}

}  // namespace shoal::plan
