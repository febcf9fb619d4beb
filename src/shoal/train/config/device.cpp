#include "shoal/train/config/device.h"

#include <fmt/format.h>

#include "shoal/train/config/members.h"

namespace shoal::train {

void validate_device(const Job& job, const model::ModelSpec& spec) {
  const JobConfig& config = job.config;
  const ParallelismSection& p = config.parallelism;
  if (p.device == DeviceKind::kCpu) return;
  const auto refuse = [&](bool asked, const char* key, const char* instead) {
    if (!asked) return;
    throw config_error(job, key,
                       fmt::format("is for parallelism.device = \"cpu\": with \"{}\" {}",
                                   name_of(p.device), instead));
  };
  // These read or write single elements on the host, and have no other path yet.
  refuse(p.tensor_parallel_degree > 1, "parallelism.tensor_parallel_degree",
         "ranks divide data and state (parallelism.zero_stage)");
  refuse(p.context_parallel_degree > 1, "parallelism.context_parallel_degree",
         "ranks divide data and state (parallelism.zero_stage)");
  refuse(p.pipeline_parallel_degree > 1, "parallelism.pipeline_parallel_degree",
         "ranks divide data and state (parallelism.zero_stage)");
  refuse(spec.experts > 0, "model.experts", "models are dense");
  refuse(p.transport == Transport::kTcp || p.transport == Transport::kMpi, "parallelism.transport",
         "ranks of a host must know each other: leave it at \"auto\"");
  refuse(p.memory_limit_mb > 0, "parallelism.memory_limit_mb",
         "memory is the device's, and nothing bounds it");
  refuse(has_members(config), "low_communication.method", "ranks exchange gradients");
  refuse(config.elastic.enabled, "elastic.enabled", "all ranks stay to the end");
  refuse(!config.optimizer.state_folder.empty(), "optimizer.state_folder",
         "states lie in the memory of the device");
  refuse(!config.precision.master_weights, "precision.master_weights",
         "16-bit weights have fp32 masters");
  refuse(config.precision.moments != Precision::kFp32, "precision.moments", "moments are fp32");
  refuse(config.precision.type == Precision::kAuto, "precision.type",
         "\"fp32\", \"bf16\" and \"fp16\" work, and nothing is measured to choose one");
  refuse(config.activation_checkpoint.mode == RecomputeMode::kBudget, "activation_checkpoint.mode",
         "memory is not planned: \"full\", \"selective\" and \"every_k\" work");
}

bool reads_in_place(const JobConfig& config, bool one_host) {
  const ParallelismSection& p = config.parallelism;
  const bool apart = p.transport == Transport::kTcp || p.transport == Transport::kMpi ||
                     (p.transport == Transport::kAuto && !one_host);
  return p.device == DeviceKind::kCpu && p.arena && !apart;
}

}  // namespace shoal::train
