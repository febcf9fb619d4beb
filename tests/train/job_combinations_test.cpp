// Every kind of mesh with everything else that a job may ask for. The test writes
// docs/reference/job_combinations.md.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "shoal/base/file.h"
#include "shoal/train/config/validate.h"
#include "tests/train/runs_of_one_job.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::job_combinations_test {
namespace {

constexpr int kSteps = 3;
constexpr int kStopped = 1;  ///< where the column "resumed" begins again
constexpr const char* kShortDocuments = "data.folders=short";  ///< `run` puts in the folder

/// A column: what a job asks for beside its mesh. One rank that asks for the same is what is right.
struct Feature {
  const char* name;
  Sets sets;
  double bound = 1e-5;          ///< of losses; of float32 sums in another order
  double mixture_bound = 2e-5;  ///< of losses of a mixture, of which tokens may change experts
  bool of_ranks = false;        ///< only ranks together can do it; what they compute is the same
};

/// A row.
struct Mesh {
  Way way;
  bool mixture = false;
  bool gathers = false;  ///< ranks fetch parameters from each other, because each has its own copy
};

const std::vector<Feature>& features() {
  static const std::vector<Feature> list{
      {"bf16", {"precision.type=bf16"}, 2e-4, 2e-3},
      {"bf16 alone",
       {"precision.type=bf16", "precision.master_weights=false", "precision.moments=bf16",
        "precision.gradients=bf16"},
       1e-3,
       3e-3},
      {"fp16", {"precision.type=fp16"}, 5e-5, 1e-3},
      {"bf16 moments", {"precision.moments=bf16"}, 2e-4, 2e-4},
      {"full", {"activation_checkpoint.mode=full"}},
      {"selective", {"activation_checkpoint.mode=selective"}},
      {"every 2nd", {"activation_checkpoint.mode=every_k", "activation_checkpoint.every_k=2"}},
      {"budget", {"activation_checkpoint.mode=budget", "activation_checkpoint.budget_mb=0.05"}},
      {"files", {"optimizer.state_folder=state"}},
      {"evaluation", {"validation.interval=2", "validation.batches=2"}},
      {"text", {"validation.sample_tokens=20"}},
      {"documents", {"data.document_mask=true", kShortDocuments}},
      {"resumed", {"checkpoint.interval=1", "checkpoint.asynchronous=false"}},
      {"reduced often", {"parallelism.reduce_every_micro_batch=true"}, 1e-5, 2e-5, true},
      {"layouts", {"parallelism.layouts=[\"blocks.0.mlp.*: weight replicate\"]"}, 1e-5, 2e-5, true},
      {"post-validation",
       {"parallelism.pipeline_parallel_post_validation=true"},
       1e-5,
       2e-5,
       true}};
  return list;
}

const std::vector<Mesh>& meshes() {
  static const Sets fsdp{"parallelism.zero_stage=3"};
  static const Sets copies{"parallelism.data_parallel_replicate_degree=2"};
  static const Sets tp{"parallelism.tensor_parallel_degree=2"};
  static const Sets cp{"parallelism.context_parallel_degree=2"};
  static const Sets pp{"parallelism.pipeline_parallel_degree=2"};
  static const Sets zb_v{"parallelism.pipeline_parallel_schedule=zb-v"};
  // Ranks of one host share one copy of the parameters unless they have no arena.
  static const Sets copied = fsdp + Sets{"parallelism.arena=false"};
  // One unit a stage, of which a rank gathers one at a time.
  static const Sets one_stage{"parallelism.pipeline_parallel_schedule=interleaved",
                              "parallelism.pipeline_parallel_virtual_stages=2",
                              "parallelism.pipeline_parallel_gathered_stages=1"};
  static const Sets ep{"parallelism.expert_parallel_degree=2"};
  static const std::vector<Mesh> list{
      {{"DDP", 2, {}}},
      {{"ZeRO-1", 2, {"parallelism.zero_stage=1"}}},
      {{"ZeRO-2", 4, {"parallelism.zero_stage=2"}}},
      {{"FSDP", 4, fsdp}},
      {{"HSDP", 4, fsdp + copies}},
      {{"FSDP, units by size", 2,
        fsdp + Sets{"parallelism.shard_units=size", "parallelism.shard_unit_size=3000"}}},
      {{"FSDP, copied", 2, copied}, false, true},
      {{"HSDP, copied", 4, copied + copies}, false, true},
      {{"tp", 2, tp}},
      {{"tp × FSDP, copied", 4, tp + copied}, false, true},
      {{"cp ring", 2, cp}},
      {{"cp heads", 2, cp + Sets{"parallelism.context_parallel_method=heads"}}},
      {{"cp ring × FSDP, copied", 4, cp + copied}, false, true},
      {{"pp 1f1b", 2, pp}},
      {{"pp zb-v", 2, pp + zb_v}},
      {{"pp interleaved × FSDP, copied", 4, pp + one_stage + copied}, false, true},
      {{"pp × tp", 4, pp + tp + Sets{"parallelism.pipeline_parallel_schedule=zb-h1"}}},
      {{"ep", 2, ep}, true},
      {{"ep × FSDP, copied", 4, ep + copied}, true, true},
      {{"ep × cp", 4, ep + cp}, true},
      {{"pp × cp × tp × ep", 8, pp + cp + tp + Sets{"parallelism.expert_parallel_degree=4"}},
       true}};
  return list;
}

/// What a run left.
struct Result {
  std::vector<StepMetrics> steps;
  std::string text;    ///< the sample
  std::string reason;  ///< why the job was refused
};

class JobCombinations : public RunsOfOneJob {
 protected:
  void SetUp() override {
    RunsOfOneJob::SetUp();
    std::vector<std::string> documents;
    for (int i = 0; i < 200; ++i)
      documents.push_back(std::string(static_cast<std::size_t>(3 + i * 7 % 23), "eaotni"[i % 6]));
    short_documents_ = prepare_corpus(path("short"), documents, 0.2).folder;
  }

  std::string job() const override {
    return fmt::format(R"(
[model]
name = "gpt2-tiny"
layers = 2
hidden = 32
heads = 4
kv_heads = 2
ffn = 48
vocab = 0
sequence = 16
dropout = 0.1
[data]
source = "tokens"
folders = ["{}"]
[training]
global_batch_sequences = 8
micro_batch = 1
sequence_length = 16
steps = {}
[optimizer]
learning_rate = 3e-3
clip_norm = 0.4
[lr_scheduler]
warmup_steps = 1
[parallelism]
timeout_s = 60.0
[metrics]
tensorboard = false
[validation]
interval = 0
batches = 1
[checkpoint]
interval = 0
at_end = false
)",
                       path("data"), kSteps + 1);
  }

  static Sets model(bool mixture) {
    if (!mixture) return {};
    return {"model.name=deepseek-moe-tiny", "model.experts=4",    "model.ffn=24",
            "model.shared_ffn=16",          "model.dense_ffn=40", "model.balance_loss=0.01",
            "model.router_bias_rate=0.01",  "model.init_std=0.1"};
  }

  Result run(const std::string& name, const Feature& feature, const Way& way, bool mixture) {
    Sets sets = model(mixture) + feature.sets + way.sets;
    flight_ = std::make_shared<collective::FlightBook>();
    for (std::string& set : sets) {
      // Files of runs that are compared may not be the same.
      if (set == "optimizer.state_folder=state") set = "optimizer.state_folder=" + path(name);
      if (set == kShortDocuments) set = fmt::format("data.folders=[\"{}\"]", short_documents_);
    }
    std::filesystem::create_directories(path(name));
    try {
      const Job whole = parse_job(job(), "job.toml", sets);
      validate(whole, way.ranks);
      if (std::string(feature.name) == "resumed") train_until(kStopped, name, way, sets);
      if (std::string(feature.name) == "text") return {{}, text_of(name, whole, way.ranks), ""};
      return {train_until(kSteps, name, way, sets), "", ""};
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kConfig || error.kind() == ErrorKind::kUsage)
          << name << ": " << error.what();
      return {{}, "", error.what()};
    }
  }

  /// Says whether the last run fetched units of parameters: gathers of nothing else have a
  /// label, but for 64-bit integers with which ranks lend memory.
  bool gathered() const {
    for (const collective::FlightPage& page : flight_->pages()) {
      for (const collective::FlightEntry& entry : page.entries) {
        if (entry.call.starts_with("all_gather ") &&
            entry.call.find(" x u64 ") == std::string::npos &&
            entry.call.find(" with label ") != std::string::npos)
          return true;
      }
    }
    return false;
  }

  /// Returns the sample that a whole run prints.
  std::string text_of(const std::string& name, const Job& job, int ranks) {
    testing::internal::CaptureStdout();
    const comm::WorldOptions world{.size = ranks, .arena = false, .flight = flight_};
    comm::run_on_threads(world, [&](const comm::Group& group) {
      RunOptions options;
      options.job = job;
      options.run_directory = path(name);
      options.world = group;
      options.console = true;
      train(options);
    });
    const std::string out = testing::internal::GetCapturedStdout();
    const std::string begin = "A sample of 20 tokens:\n";
    const std::size_t at = out.find(begin) + begin.size();
    return out.substr(at, out.rfind("\nMetrics, ") - at);
  }

  /// What one rank makes of a feature.
  const Result& one_rank(const Feature& feature, bool mixture) {
    Result& found = alone_[feature.name + std::string(mixture ? " mixture" : "")];
    if (found.steps.empty() && found.text.empty()) {
      const std::string name = fmt::format("alone {} {}", feature.name, mixture);
      const Feature plain{"plain", {}};
      found = run(name, feature.of_ranks ? plain : feature, {"one rank", 1, {}}, mixture);
      EXPECT_EQ(found.reason, "") << name;
      EXPECT_TRUE(found.text.size() >= 20 || found.steps.size() == kSteps) << name;
      if (!found.steps.empty()) {
        EXPECT_GT(found.steps.back().grad_norm, 0.4) << name << ": nothing is clipped";
        EXPECT_GT(std::abs(found.steps[0].loss - found.steps.back().loss), 0.01) << name;
      }
    }
    return found;
  }

  void expect_equal(const Result& found, const Result& wanted, double bound,
                    const std::string& what) {
    ASSERT_EQ(found.steps.size(), wanted.steps.size()) << what;
    for (std::size_t i = 0; i < wanted.steps.size(); ++i) {
      const StepMetrics& mine = found.steps[i];
      const StepMetrics& other = wanted.steps[i];
      EXPECT_EQ(mine.tokens, other.tokens) << what;
      EXPECT_NEAR(mine.loss, other.loss, bound * other.loss) << what << ", step " << i + 1;
      EXPECT_NEAR(mine.grad_norm, other.grad_norm, 50 * bound * other.grad_norm)
          << what << ", step " << i + 1;
      ASSERT_EQ(mine.evaluation.has_value(), other.evaluation.has_value()) << what;
      if (!mine.evaluation) continue;
      EXPECT_EQ(mine.evaluation->labels, other.evaluation->labels) << what;
      EXPECT_NEAR(mine.evaluation->loss, other.evaluation->loss, bound * other.evaluation->loss)
          << what;
    }
    EXPECT_EQ(found.text, wanted.text) << what;
  }

  /// Expects that one rank without the mask of documents has other losses.
  void expect_documents_matter() {
    const auto is_documents = [](const Feature& one) {
      return one.name == std::string("documents");
    };
    const Feature& masked = *std::find_if(features().begin(), features().end(), is_documents);
    const Feature plain{"no mask", {kShortDocuments}};
    const Result found = run("no mask", plain, {"one rank", 1, {}}, false);
    EXPECT_GT(std::abs(found.steps.back().loss - one_rank(masked, false).steps.back().loss), 1e-3);
  }

  std::string short_documents_;  ///< a data set with borders in most samples
  std::map<std::string, Result> alone_;
};

/// Says the rule alone: without the file and the value.
std::string rule(const std::string& reason) {
  const std::size_t list = reason.find("\"]: ");
  if (list != std::string::npos) return reason.substr(list + 4);
  const std::size_t at = reason.find("\": ");
  const std::size_t plain = reason.find(" = ");
  if (at != std::string::npos) return reason.substr(at + 3);
  return plain == std::string::npos ? reason : reason.substr(reason.find(": ", plain) + 2);
}

constexpr const char* kHead = R"(# What goes with what in a job

Every cell of this page is a test (`tests/train/job_combinations_test.cpp`), which writes the page.
Each is a job of three steps, of micro-batches of one sequence, with dropout and gradients that are
clipped. A dot: its losses, norms, evaluations and its text are those of one rank that asks for the
same. A number: such a job is refused, and says why below. "copied": each rank has parameters of its
own, as between hosts, and gathers those of the others; the test sees it do so, and not elsewhere.
"documents": several lie in a sample, and attention stays within each.
[combinations.md](combinations.md) has the axes with each other.

)";

TEST_F(JobCombinations, AreThoseOfThePage) {
  at::set_num_threads(1);
  std::vector<std::string> reasons;
  std::string page = kHead;
  std::vector<const char*> names;
  for (const Feature& feature : features()) names.push_back(feature.name);
  page += fmt::format("| | {} |\n|---|", fmt::join(names, " | "));
  for (std::size_t i = 0; i < names.size(); ++i) page += "---|";
  page += "\n";
  int runs = 0;
  for (const Mesh& mesh : meshes()) {
    page += fmt::format("| **{}** on {} |", mesh.way.name, mesh.way.ranks);
    for (const Feature& feature : features()) {
      const std::string what = fmt::format("{}, {}", mesh.way.name, feature.name);
      const Result found = run(fmt::format("run-{}", runs++), feature, mesh.way, mesh.mixture);
      if (found.reason.empty()) {
        EXPECT_EQ(gathered(), mesh.gathers) << what;
        expect_equal(found, one_rank(feature, mesh.mixture),
                     mesh.mixture ? feature.mixture_bound : feature.bound, what);
        page += " · |";
        continue;
      }
      const std::string why = rule(found.reason);
      auto known = std::find(reasons.begin(), reasons.end(), why);
      if (known == reasons.end()) known = reasons.insert(reasons.end(), why);
      page += fmt::format(" {} |", known - reasons.begin() + 1);
    }
    page += "\n";
  }
  expect_documents_matter();
  page += "\n";
  for (std::size_t i = 0; i < reasons.size(); ++i)
    page += fmt::format("{}. {}\n", i + 1, reasons[i]);
  const std::string path = SHOAL_DOCS "/reference/job_combinations.md";
  if (read_text(path) == page || HasFailure()) return;
  const std::string beside = testing::TempDir() + "job_combinations.md";
  std::ofstream(beside) << page;
  ADD_FAILURE() << path << " is not what the test found: it has written " << beside
                << ", to be looked at and put in its place";
}

}  // namespace
}  // namespace shoal::train::job_combinations_test
