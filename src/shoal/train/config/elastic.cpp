#include "shoal/train/config/elastic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "shoal/plan/degrees.h"
#include "shoal/train/config/degrees.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/members.h"
#include "shoal/train/config/pipeline.h"
#include "shoal/wire/address.h"
#include "shoal/wire/advertised.h"
#include "shoal/wire/http_client.h"
#include "shoal/wire/join_token.h"

namespace shoal::train {
namespace {

constexpr const char* kEnabled = "elastic.enabled";

/// Throws for numbers of micro-batches that the schedule of a member's pipeline does not take:
/// those depend on how many members there are.
void validate_pipelines(const Job& job, const BatchPlan& batch) {
  const ParallelismSection& p = job.config.parallelism;
  if (p.pipeline_parallel_degree == 1) return;
  if (p.pipeline_parallel_post_validation) {
    throw config_error(job, "parallelism.pipeline_parallel_post_validation",
                       "takes back an update in the next step, and members of an elastic group "
                       "(elastic.enabled) agree on each: leave it out");
  }
  if (!p.pipeline_parallel_schedule_csv.empty()) {
    throw config_error(job, "parallelism.pipeline_parallel_schedule_csv",
                       "is a table of one number of micro-batches, and that of a member of an "
                       "elastic group (elastic.enabled) depends on how many members there are: "
                       "parallelism.pipeline_parallel_schedule takes any");
  }
  std::map<std::int64_t, std::int64_t> members_of;  ///< by micro-batches of one of them
  for (std::int64_t members = 1; members <= batch.accumulation; ++members) {
    members_of.try_emplace(batch.accumulation / members, members);
    members_of.try_emplace((batch.accumulation + members - 1) / members, members);
  }
  for (const auto& [micro_batches, members] : members_of) {
    try {
      job_schedule(job, p.pipeline_parallel_degree, micro_batches);
    } catch (const Error& error) {
      throw config_error(job, "parallelism.pipeline_parallel_schedule",
                         fmt::format("of {} members of an elastic group (elastic.enabled) one "
                                     "would run {} micro-batches in a step: {}",
                                     members, micro_batches, error.message()))
          .hint("parallelism.pipeline_parallel_schedule = \"1f1b\" takes any number");
    }
  }
}

/// Ranks of one member talk as those of any job on one host, and members over TCP.
void validate_ranks_of_members(const Job& job) {
  const ParallelismSection& p = job.config.parallelism;
  if (p.transport != Transport::kAuto) {
    throw config_error(job, "parallelism.transport",
                       "the members of an elastic group (elastic.enabled) use TCP, and the ranks "
                       "of each share memory: \"auto\"");
  }
  for (const char* key :
       {"parallelism.interface", "parallelism.ports", "parallelism.advertise", "parallelism.rails",
        "parallelism.silence_s", "parallelism.in_rank_order"}) {
    if (job.origins.contains(key)) {
      throw config_error(job, key,
                         "is for the ranks of one job: members of an elastic group "
                         "(elastic.enabled) have elastic.listen, elastic.ports and "
                         "elastic.suspect_after_s");
    }
  }
}

/// Ranks of a member that hold the same parameter must get the same sum of it. A codec rounds a
/// rank's values in blocks, and which others are in the block of a value depends on what the rank
/// holds.
void validate_codec(const Job& job, const model::ModelSpec& spec) {
  const ParallelismSection& p = job.config.parallelism;
  const bool tied_stages = p.pipeline_parallel_degree > 1 && spec.tied_embeddings;
  const bool differ = p.tensor_parallel_degree > 1 || p.expert_parallel_degree > 1 || tied_stages;
  if (job.config.low_communication.codec == collective::Codec::kNone || !differ) return;
  throw config_error(job, "low_communication.codec",
                     fmt::format("rounds what several ranks of a member hold, each in its own way, "
                                 "where a member of an elastic group (elastic.enabled) has {}: "
                                 "\"none\"",
                                 tied_stages ? "stages with tied embeddings"
                                             : "tensor- or expert-parallel ranks"));
}

/// The work of members in a round becomes the state of all at its end.
void validate_rounds(const Job& job, const model::ModelSpec& spec) {
  if (!has_members(job.config)) return;
  if (is_streaming(job.config)) {
    throw config_error(job, "low_communication.method",
                       "is \"streaming_diloco\", whose fragments travel while training goes on: a "
                       "member that is lost would take part of one with it. Elastic groups "
                       "(elastic.enabled) take \"diloco\" or \"local_sgd\"");
  }
  validate_codec(job, spec);
  const std::int64_t every = job.config.low_communication.every;
  const std::int64_t interval = job.config.checkpoint.interval;
  if (interval % every != 0) {
    const std::int64_t nearest = std::max(every, (interval + every / 2) / every * every);
    throw config_error(job, "checkpoint.interval",
                       fmt::format("a member of an elastic group (elastic.enabled) has what it "
                                   "trains for itself until low_communication.every = {} steps are "
                                   "done: a multiple of that, such as {}",
                                   every, nearest));
  }
}

/// All members must know the changes of a step, and take them back where it is not committed.
void validate_state(const Job& job, const model::ModelSpec& spec) {
  if (job.config.precision.type == Precision::kAuto) {
    throw config_error(job, "precision.type",
                       "each member would measure which type is faster, and all of an elastic "
                       "group (elastic.enabled) need the same one: \"fp32\", \"bf16\" or \"fp16\"");
  }
  if (!job.config.optimizer.state_folder.empty()) {
    throw config_error(job, "optimizer.state_folder",
                       "a member of an elastic group (elastic.enabled) keeps a copy of the "
                       "optimizer's state in memory, where this is to save it");
  }
  if (spec.router_bias && spec.router_bias_rate > 0) {
    throw config_error(job, "model.router_bias_rate",
                       "moves biases by the choices of all members in every step, and in an "
                       "elastic group (elastic.enabled) each knows its own: 0 there, and "
                       "model.balance_loss keeps experts even");
  }
}

void validate_etcd(const Job& job) {
  if (!wire::HttpClient::is_available()) {
    throw config_error(job, "elastic.etcd", "there is no libcurl, which reaches an etcd")
        .hint(
            "install libcurl4; where Shoal was built without libcurl4-openssl-dev (Debian), that "
            "too, "
            "and configure and build again");
  }
  if (job.config.elastic.on_quorum_loss != OnQuorumLoss::kStop) {
    throw config_error(job, "elastic.on_quorum_loss",
                       "is for members that decide by themselves: with elastic.etcd whoever "
                       "reaches the etcd goes on, and nobody decides without it: \"stop\"");
  }
}

void validate_network(const Job& job) {
  const ElasticSection& elastic = job.config.elastic;
  const auto check = [&](const char* key, auto&& read) {
    try {
      read();
    } catch (const Error& error) {
      throw config_error(job, key, error.message());
    }
  };
  check("elastic.ports", [&] { wire::parse_port_range(elastic.ports); });
  check("elastic.advertise",
        [&] { wire::check_advertised(elastic.advertise, wire::parse_port_range(elastic.ports)); });
  check("elastic.token_key", [&] {
    if (!elastic.token_key.empty()) wire::parse_token_key(elastic.token_key);
  });
  check("elastic.join", [&] {
    for (const std::string& contact : elastic.join) wire::parse_endpoint(contact);
  });
  check("elastic.etcd", [&] {
    for (const std::string& address : elastic.etcd) wire::check_http_address(address);
  });
  if (!elastic.etcd.empty()) validate_etcd(job);
  const bool on_one_host = elastic.listen.starts_with("127.") || elastic.listen == "::1" ||
                           elastic.listen == "localhost";
  if (!on_one_host && elastic.key_file.empty()) {
    throw config_error(job, "elastic.key_file",
                       fmt::format("members that other hosts reach (elastic.listen = \"{}\") need "
                                   "a secret that all share",
                                   elastic.listen))
        .hint("head -c 32 /dev/urandom | base64 > key, copied to each host");
  }
}

}  // namespace

std::string describe_mesh(const Job& job, int ranks) {
  if (ranks == 1) return "";
  const plan::Degrees degrees = job_degrees(job, ranks);
  std::vector<std::string> parts;
  const auto add = [&](const char* what, std::int64_t number) {
    if (number > 1) parts.push_back(fmt::format("{} {}", what, number));
  };
  add("dp", degrees.dp());
  add("dp_replicate", degrees.dp_replicate);
  add("tp", degrees.tp);
  add("cp", degrees.cp);
  add("ep", degrees.ep);
  add("pp", degrees.pp);
  const ParallelismSection& p = job.config.parallelism;
  if (p.zero_stage > 0) parts.push_back(fmt::format("zero_stage {}", p.zero_stage));
  // Whatever else says which rank has which part of a tensor, or in which order parts are summed.
  const JobConfig defaults;
  for (const char* name : {"layouts", "shard_units", "shard_unit_size", "shard_unit_names",
                           "pipeline_parallel_schedule", "pipeline_parallel_virtual_stages",
                           "pipeline_parallel_stages_by", "pipeline_parallel_stage_units",
                           "context_parallel_method", "reduce_every_micro_batch"}) {
    const ConfigKey& key = *find_key("parallelism", name);
    const std::string value = value_text(key, job.config);
    if (value != value_text(key, defaults)) parts.push_back(fmt::format("{} {}", name, value));
  }
  return fmt::to_string(fmt::join(parts, ", "));
}

void validate_elastic(const Job& job, const model::ModelSpec& spec, const BatchPlan& batch) {
  const ElasticSection& elastic = job.config.elastic;
  if (!elastic.enabled) return;
  validate_ranks_of_members(job);
  validate_pipelines(job, batch);
  validate_state(job, spec);
  validate_rounds(job, spec);
  validate_network(job);
  if (job.config.training.micro_batch == 0) {
    throw config_error(job, kEnabled,
                       "members divide the micro-batches of a step among them, however many there "
                       "are: set training.micro_batch");
  }
  if (elastic.members > batch.accumulation) {
    throw config_error(job, "elastic.members",
                       fmt::format("a step has {} micro-batches of training.micro_batch = {} for "
                                   "each rank: more members would have nothing to do",
                                   batch.accumulation, batch.micro_batch));
  }
}

std::vector<std::string> keys_that_differ(const JobConfig& group, const JobConfig& own) {
  static const std::set<std::string> kSections = {
      "data", "training", "optimizer", "precision", "lr_scheduler", "debug", "low_communication"};
  // Places on one host, and what only one member is to do. The data itself is compared by its
  // fingerprint.
  static const std::set<std::string> kOwn = {
      "data.folders",     "data.file",         "data.prepare", "data.prepare_from",
      "data.tokenizer",   "data.vocab_size",   "debug.fault",  "debug.fault_step",
      "debug.fault_rank", "debug.fault_action"};
  std::vector<std::string> differences;
  for (const ConfigKey& key : all_keys()) {
    if (!kSections.contains(key.section) || kOwn.contains(key.path())) continue;
    const auto or_unset = [](const std::string& text) { return text.empty() ? "not set" : text; };
    const std::string theirs = or_unset(value_text(key, group));
    const std::string value = or_unset(value_text(key, own));
    if (theirs != value)
      differences.push_back(fmt::format("{} is {} there and {} here", key.path(), theirs, value));
  }
  return differences;
}

}  // namespace shoal::train
