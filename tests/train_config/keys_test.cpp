// What each key takes and where it has an effect, key by key: the table of keys says it once, and
// this says it once more.
#include "shoal/train/config/keys.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shoal/train/config/job_file.h"
#include "shoal/train/config/toml_text.h"

namespace shoal::train::keys_test {
namespace {

using ::testing::HasSubstr;
using Paths = std::set<std::string>;

/// The keys that would be refused in a job if they were set.
Paths without_effect(const JobConfig& config) {
  Paths paths;
  for (const ConfigKey& key : all_keys()) {
    const bool refused =
        std::any_of(key.only_with.begin(), key.only_with.end(),
                    [&](const Requirement reason) { return !reason(config).empty(); });
    if (refused) paths.insert(key.path());
  }
  return paths;
}

Paths both(Paths a, const Paths& b) {
  a.insert(b.begin(), b.end());
  return a;
}

Paths except(Paths a, const Paths& b) {
  for (const std::string& path : b) a.erase(path);
  return a;
}

/// A job on tokens in which as many keys as possible have an effect.
JobConfig busy_job() {
  JobConfig job;
  job.data.prepare = DataPreparation::kFiles;
  job.validation.sample_tokens = 1;
  job.lr_scheduler.name = SchedulerKind::kWarmupStableDecay;
  job.parallelism.zero_stage = 3;
  job.parallelism.shard_units = ShardUnits::kSize;
  job.parallelism.gather_ahead = 2;
  job.activation_checkpoint.mode = RecomputeMode::kEveryK;
  job.debug.fault = Fault::kKill;
  return job;
}

const Paths kOfSgd{"optimizer.momentum", "optimizer.nesterov"};
const Paths kOfCsv{"data.target", "data.task"};
const Paths kOfRegression{"data.samples", "data.features", "data.noise"};
const Paths kOfTables =
    both(both(kOfCsv, kOfRegression), {"data.file", "data.validation_fraction"});
const Paths kOfTokens{"data.folders",
                      "data.weights",
                      "data.prepare",
                      "data.prepare_from",
                      "data.tokenizer",
                      "data.vocab_size",
                      "data.document_mask",
                      "training.tokens",
                      "training.global_batch_tokens",
                      "training.sequence_length",
                      "validation.sample_tokens",
                      "validation.sample_prompt"};
const Paths kOfStreaming{"low_communication.fragments", "low_communication.overlap_steps",
                         "low_communication.mix"};
const Paths kOfAnOuterOptimizer{"low_communication.learning_rate", "low_communication.momentum"};
const Paths kOfMembers =
    both(both(kOfStreaming, kOfAnOuterOptimizer),
         {"low_communication.every", "low_communication.codec", "low_communication.rounding"});
const Paths kOfElasticJobs{"elastic.join",
                           "elastic.listen",
                           "elastic.ports",
                           "elastic.key_file",
                           "elastic.advertise",
                           "elastic.token_key",
                           "elastic.token_file",
                           "elastic.members",
                           "elastic.suspect_after_s",
                           "elastic.on_quorum_loss",
                           "elastic.quorum_patience_s",
                           "elastic.etcd",
                           "elastic.etcd_ca_file",
                           "elastic.etcd_patience_s",
                           "elastic.step_timeout_s",
                           "low_communication.shares"};
/// What has no effect in a busy job whatever its data is.
const Paths kElsewhere = both(both(kOfSgd, both(kOfMembers, kOfElasticJobs)),
                              {"parallelism.bucket_mb", "activation_checkpoint.budget_mb"});

TEST(Conditions, OfTheData) {
  JobConfig job = busy_job();
  EXPECT_EQ(without_effect(job), both(kElsewhere, kOfTables));
  const Paths of_tables = both(kElsewhere, kOfTokens);
  job.data.source = DataKind::kDigits;
  EXPECT_EQ(without_effect(job), both(of_tables, both(kOfCsv, kOfRegression)));
  job.data.source = DataKind::kCsv;
  EXPECT_EQ(without_effect(job), both(of_tables, kOfRegression));
  job.data.source = DataKind::kRegression;
  EXPECT_EQ(without_effect(job), both(of_tables, both(kOfCsv, {"data.file"})));
}

TEST(Conditions, OfWhatElseTheJobSays) {
  const Paths busy = without_effect(busy_job());
  const auto with = [](auto change) {
    JobConfig job = busy_job();
    change(job);
    return without_effect(job);
  };
  EXPECT_EQ(with([](JobConfig& job) { job.data.prepare = DataPreparation::kNothing; }),
            both(busy, {"data.tokenizer", "data.vocab_size"}));
  EXPECT_EQ(with([](JobConfig& job) { job.data.prepare = DataPreparation::kHeaders; }), busy);
  EXPECT_EQ(with([](JobConfig& job) { job.data.tokenizer = TokenizerChoice::kByte; }),
            both(busy, {"data.vocab_size"}));
  EXPECT_EQ(with([](JobConfig& job) { job.validation.sample_tokens = 0; }),
            both(busy, {"validation.sample_prompt"}));
  EXPECT_EQ(with([](JobConfig& job) { job.optimizer.name = OptimizerKind::kSgd; }),
            both(except(busy, kOfSgd),
                 {"optimizer.beta1", "optimizer.beta2", "optimizer.epsilon", "precision.moments"}));
  EXPECT_EQ(with([](JobConfig& job) { job.lr_scheduler.name = SchedulerKind::kCosine; }),
            both(busy, {"lr_scheduler.decay_fraction"}));
  EXPECT_EQ(with([](JobConfig& job) { job.lr_scheduler.name = SchedulerKind::kLinear; }),
            both(busy, {"lr_scheduler.decay_fraction"}));
  EXPECT_EQ(with([](JobConfig& job) { job.lr_scheduler.name = SchedulerKind::kConstant; }),
            both(busy, {"lr_scheduler.decay_fraction", "lr_scheduler.final_ratio"}));
  EXPECT_EQ(
      with([](JobConfig& job) { job.activation_checkpoint.mode = RecomputeMode::kBudget; }),
      both(except(busy, {"activation_checkpoint.budget_mb"}), {"activation_checkpoint.every_k"}));
  EXPECT_EQ(with([](JobConfig& job) { job.activation_checkpoint.mode = RecomputeMode::kNone; }),
            both(busy, {"activation_checkpoint.every_k"}));
  EXPECT_EQ(with([](JobConfig& job) { job.checkpoint.asynchronous = false; }),
            both(busy, {"checkpoint.staging_mb", "checkpoint.writer_share"}));
  EXPECT_EQ(with([](JobConfig& job) { job.debug.fault = Fault::kNone; }),
            both(busy, {"debug.fault_step", "debug.fault_rank", "debug.fault_action"}));
}

TEST(Conditions, OfSharding) {
  const Paths busy = without_effect(busy_job());
  const Paths of_stage_3{"parallelism.gather_ahead", "parallelism.reshard_after_forward"};
  JobConfig job = busy_job();
  job.parallelism.shard_units = ShardUnits::kBlock;
  EXPECT_EQ(without_effect(job), both(busy, {"parallelism.shard_unit_size"}));
  for (const int stage : {1, 2}) {
    job = busy_job();
    job.parallelism.zero_stage = stage;
    EXPECT_EQ(without_effect(job), both(busy, of_stage_3)) << stage;
  }
  job.parallelism.gather_ahead = 1;  // a file that a run wrote names it
  EXPECT_EQ(without_effect(job), both(busy, {"parallelism.reshard_after_forward"}));
  job = busy_job();
  job.parallelism.zero_stage = 0;
  EXPECT_EQ(without_effect(job),
            both(both(except(busy, {"parallelism.bucket_mb"}), of_stage_3),
                 {"precision.gathers", "parallelism.data_parallel_shard_degree",
                  "parallelism.data_parallel_replicate_degree", "parallelism.shard_units",
                  "parallelism.shard_unit_size", "parallelism.shard_unit_names",
                  "parallelism.reduce_every_micro_batch"}));
}

TEST(Conditions, OfMembers) {
  const Paths busy = except(without_effect(busy_job()), kOfMembers);
  const auto of = [](LowCommunication method) {
    JobConfig job = busy_job();
    job.low_communication.method = method;
    job.low_communication.codec = collective::Codec::kI4;
    return without_effect(job);
  };
  EXPECT_EQ(of(LowCommunication::kLocalSgd), both(busy, both(kOfStreaming, kOfAnOuterOptimizer)));
  EXPECT_EQ(of(LowCommunication::kDiLoCo), both(busy, kOfStreaming));
  EXPECT_EQ(of(LowCommunication::kStreamingDiLoCo), busy);
  JobConfig rounds = busy_job();
  rounds.elastic.enabled = true;
  const Paths elastic =
      except(without_effect(rounds), both(kOfMembers, {"low_communication.shares"}));
  rounds.low_communication.method = LowCommunication::kDiLoCo;
  EXPECT_EQ(without_effect(rounds),
            both(elastic, both(kOfStreaming, {"low_communication.rounding"})));
}

TEST(Conditions, OfElasticJobs) {
  JobConfig job = busy_job();
  job.elastic.enabled = true;
  job.elastic.etcd = {"http://node1:2379"};
  const Paths with_an_etcd =
      both(except(without_effect(busy_job()), kOfElasticJobs), {"low_communication.shares"});
  EXPECT_EQ(without_effect(job), with_an_etcd);
  job.elastic.etcd.clear();
  EXPECT_EQ(without_effect(job),
            both(with_an_etcd, {"elastic.etcd_ca_file", "elastic.etcd_patience_s"}));
}

/// A value of the key as a job file would have it.
std::string written(const ConfigKey& key, double value) {
  JobConfig defaults;
  const Place place = key.place(defaults);
  const bool list = std::holds_alternative<std::vector<double>*>(place) ||
                    std::holds_alternative<std::vector<std::int64_t>*>(place) ||
                    std::holds_alternative<std::optional<std::vector<std::int64_t>>*>(place);
  const bool whole = std::holds_alternative<std::int64_t*>(place) ||
                     std::holds_alternative<std::optional<std::int64_t>*>(place) ||
                     std::holds_alternative<std::vector<std::int64_t>*>(place) ||
                     std::holds_alternative<std::optional<std::vector<std::int64_t>>*>(place);
  const std::string text = whole ? toml_text(static_cast<std::int64_t>(value)) : toml_text(value);
  return list ? "[" + text + "]" : text;
}

bool accepts(const ConfigKey& key, double value) {
  Job job;
  job.file = "job.toml";
  try {
    set_key(job, key.path(), written(key, value));
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), HasSubstr(key.path())) << error.what();
    return false;
  }
}

// The page docs/reference/job.md has the bounds; here they hold, at the bound itself and beyond it.
TEST(Ranges, HoldAtTheirBounds) {
  int bounds = 0;
  for (const ConfigKey& key : all_keys()) {
    const Allowed& allowed = key.allowed;
    const auto beyond = [](double bound, double direction) {
      return bound + direction * std::max(1.0, 1e-3 * std::abs(bound));
    };
    if (std::isfinite(allowed.least)) {
      EXPECT_EQ(accepts(key, allowed.least), !allowed.above_least) << key.path();
      EXPECT_FALSE(accepts(key, beyond(allowed.least, -1))) << key.path();
      ++bounds;
    }
    if (std::isfinite(allowed.most)) {
      EXPECT_EQ(accepts(key, allowed.most), !allowed.below_most) << key.path();
      EXPECT_FALSE(accepts(key, beyond(allowed.most, 1))) << key.path();
      ++bounds;
    }
  }
  EXPECT_GT(bounds, 80);
}

TEST(Choices, EveryWordIsThatOfItsEnumerator) {
  EXPECT_EQ(find_choice<DataKind>("csv"), DataKind::kCsv);
  EXPECT_EQ(find_choice<LossKind>("mean_absolute_error"), LossKind::kMeanAbsoluteError);
  EXPECT_EQ(find_choice<SchedulerKind>("wsd"), SchedulerKind::kWarmupStableDecay);
  EXPECT_EQ(find_choice<Transport>("mpi"), Transport::kMpi);
  EXPECT_EQ(find_choice<RecomputeMode>("budget"), RecomputeMode::kBudget);
  EXPECT_EQ(find_choice<RecomputeMode>("selective"), RecomputeMode::kSelective);
  EXPECT_EQ(find_choice<Fault>("overflow"), Fault::kOverflow);
  EXPECT_EQ(find_choice<LowCommunication>("streaming_diloco"), LowCommunication::kStreamingDiLoCo);
  for (const collective::Codec codec : collective::kCodecs)
    EXPECT_EQ(find_choice<collective::Codec>(collective::name(codec)), codec);
  EXPECT_EQ(find_choice<Precision>("fp16"), Precision::kFp16);
  EXPECT_EQ(find_choice<Precision>("fp8"), std::nullopt);
  EXPECT_EQ(find_choice<Precision>(""), std::nullopt);
}

// Comments begin in column 45 of what --print-config shows.
TEST(PrintConfig, CommentsStandBelowEachOther) {
  const Job job = parse_job("[training]\nsteps = 7\n", "job.toml");
  const std::string text = print_config(job);
  EXPECT_THAT(text, HasSubstr(fmt::format("\nsteps = 7{}  # job.toml:2\n", std::string(35, ' '))));
  EXPECT_THAT(text, HasSubstr(fmt::format("\n# tokens{}  # not set\n", std::string(36, ' '))));
  EXPECT_THAT(text, HasSubstr(fmt::format("\nbeta1 = 0.9{}  # default\n", std::string(33, ' '))));
}

TEST(TomlText, NumbersAndControlCharacters) {
  EXPECT_EQ(toml_text(1.0), "1.0");
  EXPECT_EQ(toml_text(1e22), "1e+22");
  EXPECT_EQ(toml_text(0.1), "0.1");
  EXPECT_EQ(toml_text(std::string("\x7f\x1f ~")), "\"\\u007F\\u001F ~\"");
  EXPECT_EQ(number_text(1e9), "1000000000");
  EXPECT_EQ(number_text(2e9), "2e+09");
  EXPECT_EQ(number_text(-3), "-3");
  EXPECT_EQ(number_text(0.25), "0.25");
}

TEST(Ranges, AreSaidInWords) {
  const auto of = [](const char* section, const char* name) {
    return describe_allowed(*find_key(section, name));
  };
  EXPECT_EQ(of("checkpoint", "writer_share"), "a number above 0 and at most 1");
  EXPECT_EQ(of("model", "gate_scale"), "a number above 0");
  EXPECT_EQ(of("model", "layers"), "a whole number of at least 1");
  EXPECT_EQ(of("model", "dropout"), "a number from 0 to below 1");
  EXPECT_EQ(of("parallelism", "zero_stage"), "a whole number from 0 to 3");
  EXPECT_EQ(of("data", "weights"), "a list of numbers above 0");
  EXPECT_EQ(of("job", "name"), "a text");
  const auto sections = section_names();
  EXPECT_EQ(sections.size(), 15u);
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), 15u);
}

}  // namespace
}  // namespace shoal::train::keys_test
