#include "shoal/train/config/elastic.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "shoal/train/config/keys.h"
#include "shoal/train/config/members.h"
#include "shoal/wire/address.h"
#include "shoal/wire/advertised.h"
#include "shoal/wire/http_client.h"
#include "shoal/wire/join_token.h"

namespace shoal::train {
namespace {

constexpr const char* kEnabled = "elastic.enabled";

/// Ranks that divide a model would be members that cannot be missed.
void validate_whole_models(const Job& job, int ranks) {
  const ParallelismSection& p = job.config.parallelism;
  const auto refuse = [&](bool refused, const char* key, const char* what) {
    if (refused) {
      throw config_error(job, key,
                         fmt::format("{}, and every member of an elastic group (elastic.enabled) "
                                     "holds the whole model on one rank, so that any may be lost",
                                     what));
    }
  };
  refuse(p.zero_stage > 0, "parallelism.zero_stage", "cuts the state");
  refuse(p.tensor_parallel_degree > 1, "parallelism.tensor_parallel_degree", "cuts the matrices");
  refuse(p.context_parallel_degree > 1, "parallelism.context_parallel_degree",
         "cuts the sequences");
  refuse(p.expert_parallel_degree > 1, "parallelism.expert_parallel_degree", "cuts the experts");
  refuse(p.pipeline_parallel_degree > 1, "parallelism.pipeline_parallel_degree",
         "cuts the model in stages");
  if (ranks > 1) {
    throw config_error(job, "parallelism.ranks",
                       "a member of an elastic group (elastic.enabled) is one rank")
        .hint(
            "start one process a member, each with a run directory of its own; on one host, "
            "parallelism.threads_per_rank gives each its part of the cores");
  }
  if (p.transport != Transport::kAuto) {
    throw config_error(job, "parallelism.transport",
                       "the members of an elastic group (elastic.enabled) use TCP: \"auto\"");
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

/// The work of members in a round becomes the state of all at its end.
void validate_rounds(const Job& job) {
  if (!has_members(job.config)) return;
  if (is_streaming(job.config)) {
    throw config_error(job, "low_communication.method",
                       "is \"streaming_diloco\", whose fragments travel while training goes on: a "
                       "member that is lost would take part of one with it. Elastic groups "
                       "(elastic.enabled) take \"diloco\" or \"local_sgd\"");
  }
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

void validate_elastic(const Job& job, const model::ModelSpec& spec, int ranks,
                      const BatchPlan& batch) {
  const ElasticSection& elastic = job.config.elastic;
  if (!elastic.enabled) return;
  validate_whole_models(job, ranks);
  validate_state(job, spec);
  validate_rounds(job);
  validate_network(job);
  if (job.config.training.micro_batch == 0) {
    throw config_error(job, kEnabled,
                       "members divide the micro-batches of a step among them, however many there "
                       "are: set training.micro_batch");
  }
  if (elastic.members > batch.accumulation) {
    throw config_error(job, "elastic.members",
                       fmt::format("a step has {} micro-batches of training.micro_batch = {}: more "
                                   "members would have nothing to do",
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
