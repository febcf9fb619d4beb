#include "shoal/train/config/members.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/plan/division_rules.h"
#include "shoal/train/config/precision.h"

namespace shoal::train {
namespace {

/// Throws unless the members' exchanges fit into the steps between them.
void validate_exchanges(const Job& job) {
  const LowCommunicationSection& l = job.config.low_communication;
  if (!is_streaming(job.config)) return;
  if (l.fragments > l.every) {
    throw config_error(
        job, "low_communication.fragments",
        fmt::format("{} fragments are exchanged in low_communication.every = {} steps, at most one "
                    "after a step: at most {}",
                    l.fragments, l.every, l.every));
  }
  const std::int64_t most = l.every / l.fragments;
  if (l.overlap_steps > most) {
    throw config_error(job, "low_communication.overlap_steps",
                       fmt::format("one fragment travels at a time, and another begins every "
                                   "{} / {} steps: at most {}",
                                   l.every, l.fragments, most));
  }
}

}  // namespace

bool has_members(const JobConfig& config) {
  return config.low_communication.method != LowCommunication::kNone;
}

bool is_streaming(const JobConfig& config) {
  return config.low_communication.method == LowCommunication::kStreamingDiLoCo;
}

std::int64_t exchange_fragments(const JobConfig& config) {
  return is_streaming(config) ? config.low_communication.fragments : 1;
}

std::int64_t exchange_delay(const JobConfig& config) {
  return is_streaming(config) ? config.low_communication.overlap_steps : 0;
}

void validate_members(const Job& job, const model::ModelSpec& spec, std::int64_t ranks,
                      std::int64_t data) {
  if (!has_members(job.config)) return;
  const ParallelismSection& p = job.config.parallelism;
  const char* const key = "low_communication.method";
  // Each process of an elastic group is a member, and others may join it.
  if (data < 2 && !job.config.elastic.enabled) {
    throw config_error(job, key,
                       fmt::format("members are data-parallel ranks, and there is one: {} ranks "
                                   "would be two members",
                                   2 * ranks))
        .hint(
            "a job without [low_communication] trains on one; it goes on from the anchor of a run "
            "with members");
  }
  if (p.zero_stage > 0 && p.data_parallel_replicate_degree < 2 && !job.config.elastic.enabled) {
    throw config_error(job, "parallelism.data_parallel_replicate_degree",
                       fmt::format("the copies of the sharded state are the members of "
                                   "low_communication.method = \"{}\": at least 2 that divide the "
                                   "{} data-parallel ranks, as {} does",
                                   name_of(job.config.low_communication.method), data,
                                   plan::nearest_divisors(data, 2)));
  }
  validate_exchanges(job);
  if (p.transport == Transport::kMpi &&
      job.config.low_communication.codec != collective::Codec::kNone) {
    throw config_error(job, "low_communication.codec",
                       "MPI adds up numbers of its own types, and parallelism.transport is "
                       "\"mpi\": \"none\" there, or parallelism.transport = \"tcp\"");
  }
  if (p.pipeline_parallel_post_validation) {
    throw config_error(job, "parallelism.pipeline_parallel_post_validation",
                       "takes back an update that a member may have exchanged already: leave it "
                       "out, or low_communication.method = \"none\"");
  }
  const bool narrow = may_use(job, Precision::kBf16) || may_use(job, Precision::kFp16);
  if (narrow && !job.config.precision.master_weights) {
    throw config_error(job, "precision.master_weights",
                       "members exchange fp32 parameters: 16-bit weights need their masters with "
                       "low_communication.method");
  }
  if (spec.router_bias && spec.router_bias_rate > 0) {
    throw config_error(job, "model.router_bias_rate",
                       "moves biases by the choices of all ranks in every step, and members know "
                       "their own alone: 0 with low_communication.method, and model.balance_loss "
                       "keeps experts even");
  }
}

void check_exchange_before_end(const Job& job, std::int64_t steps, const std::string& length) {
  const std::int64_t every = job.config.low_communication.every;
  const std::int64_t travels = exchange_delay(job.config);
  // An elastic group ends with an exchange, however short the last round is.
  if (!has_members(job.config) || job.config.elastic.enabled || every + travels <= steps) return;
  Error error = config_error(
      job, "low_communication.every",
      fmt::format("the members would not have exchanged all parameters once: {}", length));
  // As validate_exchanges has it: each fragment needs a step of its own, and arrives before the
  // next one begins.
  const std::int64_t least = exchange_fragments(job.config) * std::max<std::int64_t>(1, travels);
  if (steps - travels >= least) {
    error.hint(fmt::format("low_communication.every = {} would do", steps - travels));
  } else if (every >= least) {
    error.hint(fmt::format("a run of {} steps would do", every + travels));
  }
  throw error;
}

std::string warn_of_last_steps(const JobConfig& config, std::int64_t steps) {
  const std::int64_t every = config.low_communication.every;
  const std::int64_t rest = (steps - exchange_delay(config)) % every;
  if (!has_members(config) || config.elastic.enabled || rest == 0) return "";
  std::string lost = fmt::format(
      "the saved model has nothing of the last {} steps, after which there is no exchange", rest);
  if (is_streaming(config)) {
    lost = fmt::format(
        "the last fragment takes its last result {} steps before the end, and what members learn "
        "of it later is not in the saved model",
        rest);
  }
  return fmt::format("Warning: {}: {} or {} steps would end with an exchange.", lost, steps - rest,
                     steps - rest + every);
}

}  // namespace shoal::train
