#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/apps/program.h"
#include "tests/apps/text_job.h"

namespace shoal::apps::testing::trained_run_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Runs of the program with its real trainer: two ranks and a small perceptron on synthetic data,
/// some hundred steps a second.
class TrainedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("job.toml", R"([model]
family = "mlp"
widths = [16]
[data]
source = "regression"
samples = 512
[training]
global_batch_sequences = 16
steps = 20
[checkpoint]
interval = 10
[validation]
interval = 0
[metrics]
tensorboard = false
[parallelism]
ranks = 2
timeout_s = 60
)");
  }
  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all = {shoal_program(), "train", "job.toml", "--run-dir", "run"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(std::vector<std::string> more) const {
    return run(words(std::move(more)), folder.path());
  }

  /// What a refused run must leave alone: everything but logs and the lock.
  std::map<std::string, std::string> results() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "run")) {
      const std::string name = entry.path().lexically_relative(folder.path()).string();
      if (entry.is_regular_file() && name != "run/lock" && name.find("run/logs/") != 0)
        found[name] = folder.read(name);
    }
    return found;
  }
  std::map<std::string, std::string> weights() const {
    auto found = results();
    std::erase_if(found, [](const auto& file) {
      return file.first.find(".safetensors") == std::string::npos;
    });
    return found;
  }
  void expect_refused(const std::vector<std::string>& more, int code,
                      const std::vector<std::string>& says) {
    const auto before = results();
    const Outcome outcome = train(more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& part : says) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_THAT(outcome.err, Not(HasSubstr("frame #")));
    EXPECT_EQ(results(), before);
  }

  Folder folder;
};

// Sums of two ranks do not depend on their order, so the weights after 20 steps must be the same to
// the last bit, whatever carried the gradients.
TEST_F(TrainedRun, TcpTrainsTheSameWeightsAsSharedMemory) {
  const Outcome shared = train({"--set", "parallelism.memory_limit_mb=12000"});
  ASSERT_EQ(shared.code, 0) << shared.err;
  EXPECT_THAT(shared.out, HasSubstr("; a rank may take 12000 MB."));
  const auto expected = weights();
  ASSERT_FALSE(expected.empty());
  const Outcome over_tcp = train({"--fresh", "--set", "parallelism.transport=tcp", "--set",
                                  "parallelism.ports=28700-28900", "--set",
                                  "parallelism.algorithms=all_reduce=ring,broadcast=direct",
                                  "--set", "parallelism.in_rank_order=true"});
  EXPECT_EQ(over_tcp.code, 0) << over_tcp.err;
  EXPECT_EQ(weights(), expected);

  // Two ranks that their launcher started on two hosts; they meet at the port that MASTER_ADDR and
  // MASTER_PORT name, or at one of the next.
  std::filesystem::remove_all(folder.path() / "run");
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<Program>(
        words({}), folder.path(),
        std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                                           {"OMPI_COMM_WORLD_SIZE", "2"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                           {"SHOAL_JOB_KEY", std::to_string(::getpid())},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", "29700"}}));
  }
  for (auto& rank : ranks) {
    const Outcome outcome = rank->wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  EXPECT_EQ(weights(), expected);
}

#ifdef SHOAL_MPIRUN
TEST_F(TrainedRun, MpiTrainsTheSameWeightsAsSharedMemory) {
  write_text_job(folder, 2, 10, R"([validation]
interval = 0
[checkpoint]
interval = 0
[metrics]
tensorboard = false
[parallelism]
ranks = 2
timeout_s = 60
)");
  const auto job = [](const std::string& way, const std::string& transport) {
    const bool experts = way == "expert_parallel_degree=2";
    return std::vector<std::string>{
        "--fresh",
        "--set",
        "parallelism." + way,
        "--set",
        "parallelism.transport=" + transport,
        "--set",
        std::string("model.name=") + (experts ? "moe-tiny" : "gpt2-tiny")};
  };
  for (const char* way : {"zero_stage=3", "tensor_parallel_degree=2", "pipeline_parallel_degree=2",
                          "context_parallel_degree=2", "expert_parallel_degree=2"}) {
    // Stage 3 cuts parameters otherwise where ranks share memory.
    ASSERT_EQ(train(job(way, std::string(way) == "zero_stage=3" ? "tcp" : "auto")).code, 0) << way;
    const auto expected = weights();
    ASSERT_FALSE(expected.empty());
    std::vector<std::string> command{SHOAL_MPIRUN, "2"};
    for (const std::string& word : words(job(way, "mpi"))) command.push_back(word);
    const Outcome outcome = run(command, folder.path());
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("started by Open MPI"));
    EXPECT_EQ(weights(), expected) << way;
  }
}
#endif

TEST_F(TrainedRun, MpiNeedsItsLauncher) {
  const Outcome outcome = train({"--set", "parallelism.transport=mpi"});
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.err,
              HasSubstr("no MPI has started the 2 ranks. Hint: mpirun -n 2 shoal train"));
  EXPECT_FALSE(folder.has("run"));
}

struct Fault {
  const char* name;
  int code;
  const char* first;
};

// Answers are checked by the program itself; of each operation it prints a line.
TEST(Bench, MessagesAreTimedOnSharedMemoryAndOverTcp) {
  const Folder folder;
  for (const char* transport : {"shared_memory", "tcp"}) {
    for (const char* type : {"f32", "u8"}) {
      const Outcome outcome =
          run({shoal_program(), "bench", "collectives", "--nproc", "3", "--transport", transport,
               "--type", type, "--op", "sendrecv,ping_pong,message_rate", "--bytes", "4096",
               "--seconds", "0.001", "--json"},
              folder.path(), {}, 60);
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      for (const char* op : {"sendrecv", "ping_pong", "message_rate"}) {
        EXPECT_THAT(outcome.out,
                    ContainsRegex(fmt::format(
                        "\"op\": \"{}\".*\"world\": 3, \"transport\": \"{}\", \"algorithm\": "
                        "\"message\".*\"type\": \"{}\", \"bytes\": 40[0-9]*, \"us_min\"",
                        op, transport, type)));
      }
    }
  }
  const Outcome alone = run(
      {shoal_program(), "bench", "collectives", "--nproc", "1", "--op", "sendrecv"}, folder.path());
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, HasSubstr("sendrecv is between ranks"));
}

TEST_F(TrainedRun, TheFirstCauseComesFirstAndGivesTheCode) {
  const Fault faults[] = {
      {"error", 1, "shoal: rank 1 of 2 failed in step 15: [train] "},
      {"exit", 1, "shoal: rank 1 of 2 ended with code 1 and left no error report in step 15\n"},
      {"kill", 137, "shoal: rank 1 of 2 was killed by signal 9 (Killed) in step 15\n"},
      {"stop", 201, "shoal: rank 1 of 2 stands still: a signal has stopped it\n"},
      {"nan", 80, "shoal: rank 1 of 2 failed in step 15: [train] the loss is "}};
  for (const Fault& fault : faults) {
    const std::string name = fault.name;
    // A rank that is stopped is missed when the time of a collective is over.
    const std::string timeout =
        std::string("parallelism.timeout_s=") + (name == "stop" ? "10" : "600");
    const Outcome outcome =
        train({"--fresh", "--set", "checkpoint.asynchronous=false", "--set", "debug.fault=" + name,
               "--set", "debug.fault_step=15", "--set", "debug.fault_rank=1", "--set", timeout});
    EXPECT_EQ(outcome.code, fault.code) << fault.name << "\n" << outcome.err;
    EXPECT_EQ(outcome.err.find(fault.first), 0u) << fault.name << "\n" << outcome.err;
    EXPECT_TRUE(folder.has("run/checkpoints/step-10/manifest.json")) << fault.name;
    // Rank 0 wrote what both were doing; rank 1 did too unless it had no chance to.
    const std::string flight = folder.read("run/logs/flight.jsonl");
    const std::string own = folder.read("run/logs/flight-rank-0.jsonl");
    EXPECT_THAT(own, HasSubstr("\"record\":\"rank\"")) << fault.name;
    EXPECT_THAT(own, HasSubstr("\"rank\":1,\"sequence\":"))
        << fault.name << ": shared memory shows the other rank";
    const bool speaks = name == "error" || name == "nan";
    EXPECT_EQ(folder.has("run/logs/flight-rank-1.jsonl"), speaks) << name;
    if (speaks) continue;  // its words may have come before rank 0 was in the next collective
    EXPECT_THAT(flight, HasSubstr("\"record\":\"verdict\"")) << fault.name << "\n" << flight;
    EXPECT_THAT(flight, HasSubstr("rank 1 never entered it (its last was #")) << fault.name;
  }
}

TEST_F(TrainedRun, AFailingThreadEndsThemAll) {
  const Outcome outcome = train({"--in-process", "--set", "debug.fault=error", "--set",
                                 "debug.fault_step=15", "--set", "debug.fault_rank=1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("shoal: 2 ranks as threads failed in step 15: [train] "));
  EXPECT_THAT(outcome.err, HasSubstr("(rank 1 of 2)"));
}

TEST_F(TrainedRun, ASignalSavesAndTheSameCommandGoesOn) {
  const std::vector<std::string> more = {"--set", "training.steps=1000000"};
  std::string saved = "no checkpoint yet";
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    const std::string before = folder.read("run/metrics.jsonl");
    Program program(words(more), folder.path());
    for (int i = 0; i < 6000 && folder.read("run/metrics.jsonl").size() <= before.size() + 1000;
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    program.signal(signal);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 128 + signal) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    const auto at = outcome.out.find("run/checkpoints/step-");
    ASSERT_NE(at, std::string::npos) << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr(std::string("Stopped by SIG") + ::sigabbrev_np(signal)));
    if (signal != SIGTERM) {
      EXPECT_THAT(outcome.out, HasSubstr(saved)) << "it says from where it goes on";
    }
    const auto end = outcome.out.find_last_of("0123456789");
    const auto begin = outcome.out.rfind("step-");
    ASSERT_LT(begin, end);
    saved = outcome.out.substr(begin, end + 1 - begin);
    EXPECT_TRUE(folder.has("run/checkpoints/" + saved + "/manifest.json")) << saved;
  }
}

TEST_F(TrainedRun, EveryRankHasItsLog) {
  for (const char* threads : {"false", "true"}) {
    ASSERT_EQ(train({"--fresh", "--set", std::string("parallelism.in_process=") + threads}).code,
              0);
    for (const char* rank : {"0", "1"}) {
      const std::string log = folder.read(std::string("run/logs/rank-") + rank + ".log");
      EXPECT_THAT(log, HasSubstr(std::string("rank ") + rank + " of 2 in process "));
      EXPECT_THAT(log, HasSubstr("ended with code 0 in step 20"));
    }
  }
}

TEST_F(TrainedRun, ForeignAndDamagedCheckpointsAreRefused) {
  ASSERT_EQ(train({}).code, 0);
  expect_refused({"--set", "model.widths=[8]"}, 78,
                 {"belongs to another job: model.widths was [16] and is [8]", "--fresh"});
  expect_refused({"--set", "model.activation=tanh"}, 78, {"model.activation"});
  expect_refused(
      {"--set", "training.loss=mean_absolute_error"}, 78,
      {"belongs to another job: training.loss was mean_squared_error and is mean_absolute_error"});
  expect_refused({"--set", "optimizer.name=sgd"}, 78,
                 {"belongs to another job: optimizer.name was adamw and is sgd"});
  expect_refused({"--fresh", "--set", "parallelism.pin_cores=true", "--set",
                  "parallelism.threads_per_rank=4096"},
                 78, {"parallelism.pin_cores"});
  expect_refused({"--set", "debug.seed=1"}, 78,
                 {"belongs to another job: debug.seed was 0 and is 1."});
  expect_refused({"--set", "data.noise=0.2"}, 78,
                 {"belongs to another job: data.noise was 0.1 and is 0.2."});
  int files = 0;
  for (const auto& [name, whole] : results()) {
    if (name.find("run/checkpoints/step-20/") != 0) continue;
    ++files;
    std::string flipped = whole;
    flipped[flipped.size() / 2] ^= 0x55;
    for (const std::string& broken : {flipped, whole.substr(0, whole.size() / 2)}) {
      folder.write(name, broken);
      expect_refused({"--set", "training.steps=30"}, 65, {"step-20"});
    }
    folder.write(name, whole);
  }
  EXPECT_GE(files, 2);
  // Whole again; and other instructions give other last bits, which the run says.
  const Outcome resumed =
      run(words({"--set", "training.steps=30"}), folder.path(), {{"SHOAL_CPU", "portable"}});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("instructions and goes on with portable"));
}

TEST_F(TrainedRun, AFinishedRunDrawsItsMissingPlotAgain) {
  ASSERT_EQ(train({}).code, 0);
  const std::string plot = folder.read("run/loss.svg");
  EXPECT_THAT(plot, HasSubstr("<svg"));
  std::filesystem::remove(folder.path() / "run/loss.svg");
  const Outcome outcome = train({});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("This run is finished"));
  EXPECT_EQ(folder.read("run/loss.svg"), plot);
}

TEST_F(TrainedRun, AnEvaluationThatIsNoNumberEndsTheRunBeforeItIsWritten) {
  const Outcome outcome =
      train({"--set", "optimizer.name=sgd", "--set", "optimizer.clip_norm=0", "--set",
             "optimizer.learning_rate=1e38", "--set", "training.steps=1"});
  EXPECT_EQ(outcome.code, 80) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the evaluation after step 1 gives loss "));
  EXPECT_EQ(folder.read("run/metrics.jsonl"), "");
  EXPECT_FALSE(folder.has("run/checkpoints/step-1"));
  EXPECT_EQ(train({"--set", "training.steps=1"}).code, 0) << "nothing broken lies in the way";
}

/// A job for each kind of data, of a few steps.
std::string job_of(const std::string& source) {
  const std::string rest =
      "[checkpoint]\ninterval = 2\n[metrics]\ntensorboard = false\n[validation]\nbatches = "
      "0\n[training]\nsteps = 4\n";
  if (source == "tokens") {
    return rest +
           "global_batch_sequences = 4\nsequence_length = 16\n[data]\nfolders = "
           "[\"corpus\"]\nprepare = \"files\"\n" +
           "prepare_from = [\"text\"]\ntokenizer = \"byte\"\n[model]\nname = \"gpt2-tiny\"\nlayers "
           "= 1\nvocab = 0\ndropout = 0.1\n";
  }
  const std::string table =
      rest +
      "global_batch_sequences = 16\n[model]\nfamily = \"mlp\"\nwidths = [8]\n[data]\nsource = \"" +
      source + "\"\n";
  return source == "csv" ? table + "file = \"table.csv\"\ntask = \"regression\"\n" : table;
}

class EverySource : public TrainedRun, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    folder.write("job.toml", job_of(GetParam()));
    std::string table = "a,b,y\n";
    for (int i = 0; i < 200; ++i) {
      table += std::to_string(i % 7) + "," + std::to_string(i % 11) + "," +
               std::to_string(i % 7 - 2 * (i % 11)) + "\n";
    }
    folder.write("table.csv", table);
    std::uint32_t state = 1;
    for (int file = 0; file < 40; ++file) {
      std::string text;
      for (int k = 0; k < 200; ++k)
        state = state * 1664525 + 1013904223, text += static_cast<char>('a' + (state >> 24) % 26);
      folder.write("text/" + std::to_string(file) + ".txt", text);
    }
    const Outcome outcome = train({});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
};

// The last line of metrics.jsonl holds the evaluation of the whole validation split by the same
// weights.
TEST_P(EverySource, EvalFindsWhatTheRunFound) {
  const std::string metrics = folder.read("run/metrics.jsonl");
  const auto at = metrics.rfind("\"eval_loss\"");
  ASSERT_NE(at, std::string::npos) << metrics;
  const std::string expected = "{" + metrics.substr(at);
  const auto number = [](const std::string& json) {
    return std::stod(json.substr(json.find(": ") + 2));
  };
  const Outcome outcome =
      run({shoal_program(), "eval", "--checkpoint", "run", "--json"}, folder.path());
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // Micro-batches of other sizes add float losses in another order.
  EXPECT_NEAR(number(outcome.out), number(expected), 1e-5 * std::abs(number(expected)));
  const auto keys = [](const std::string& json) {
    std::vector<std::string> found;
    for (std::size_t at = json.find('"'); at != std::string::npos;
         at = json.find('"', json.find('"', at + 1) + 1))
      found.push_back(json.substr(at, json.find('"', at + 1) - at));
    return found;
  };
  EXPECT_EQ(keys(outcome.out), keys(expected));
}

// config.toml says what was resolved: a run from it alone trains the same weights.
TEST_P(EverySource, TheWrittenConfigurationTrainsTheSame) {
  const std::string config = folder.read("run/config.toml");
  EXPECT_THAT(config, Not(HasSubstr("micro_batch = 0")));
  EXPECT_THAT(config, Not(HasSubstr("threads_per_rank = 0")));
  const Outcome outcome =
      run({shoal_program(), "train", "run/config.toml", "--run-dir", "again"}, folder.path());
  ASSERT_EQ(outcome.code, 0) << outcome.err << config;
  EXPECT_EQ(folder.read("again/config.toml"), config);
  const auto weights = [&](const std::string& directory) {
    std::map<std::string, std::string> files;
    const auto step = folder.path() / directory / "checkpoints/step-4";
    for (const auto& entry : std::filesystem::directory_iterator(step)) {
      if (entry.path().extension() == ".safetensors") {
        files[entry.path().filename()] =
            folder.read(std::filesystem::relative(entry, folder.path()));
      }
    }
    return files;
  };
  EXPECT_FALSE(weights("run").empty());
  EXPECT_EQ(weights("again"), weights("run"));
  const auto losses = [&](const std::string& directory) {
    std::string found;
    std::istringstream lines(folder.read(directory + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      found += line.substr(0, line.find(", \"tokens_per_s\"")) + "\n";
    return found;
  };
  const std::string expected = losses("run");
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 4);
  EXPECT_EQ(losses("again"), expected);
}

INSTANTIATE_TEST_SUITE_P(TrainedRun, EverySource,
                         ::testing::Values("tokens", "digits", "csv", "regression"));

/// Returns the numbers behind each `"key":` of a text, in order.
std::vector<double> numbers_of(const std::string& json, const std::string& key) {
  std::vector<double> numbers;
  const std::string name = "\"" + key + "\":";
  for (auto at = json.find(name); at != json.npos; at = json.find(name, at + 1))
    numbers.push_back(std::stod(json.substr(at + name.size())));
  return numbers;
}

TEST_F(TrainedRun, IsScaledOverRanks) {
  write_text_job(folder, 2, 10, "");
  const Outcome measured = run({shoal_program(), "bench", "scaling", "job.toml", "--ranks", "2,1",
                                "--steps", "5", "--no-plan", "--out", "curve.svg", "--json"},
                               folder.path());
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_EQ(numbers_of(measured.out, "ranks"), (std::vector<double>{1, 2}));
  EXPECT_EQ(numbers_of(measured.out, "of_a_step"), (std::vector<double>{4 * 16}));
  EXPECT_EQ(numbers_of(measured.out, "planned_step_s"), std::vector<double>());
  const auto step_s = numbers_of(measured.out, "measured_step_s");
  ASSERT_EQ(step_s.size(), 2u);
  EXPECT_GT(step_s[0], 0);
  double lost = 0;
  for (const char* part : {"communication", "data", "update", "computing"})
    lost += numbers_of(measured.out, part).at(1);
  EXPECT_NEAR(lost, step_s[1] - step_s[0] / 2, 1e-9);
  EXPECT_GT(numbers_of(measured.out, "comm_exposed_s").at(1), 0) << "two ranks meet in each step";
  EXPECT_THAT(folder.read("curve.svg"), HasSubstr("</svg>"));
  EXPECT_FALSE(folder.has("runs"));
}

// What a tokenizer has that is trained on little text, nobody knows before the run.
TEST_F(TrainedRun, IsPlannedWithTheVocabularyThatItMakes) {
  write_text_job(folder, 1, 10, "");
  folder.write("one.toml", "preset = \"cpu\"\ndevices_per_host = 1\n");
  const auto step_s = [&](std::vector<std::string> words, const std::string& key) {
    words.insert(words.begin(), shoal_program());
    words.insert(words.end(),
                 {"--cluster", "one.toml", "--json", "--set", "data.tokenizer=bpe", "--set",
                  "data.vocab_size=100000", "--set", "parallelism.threads_per_rank=1"});
    const Outcome outcome = run(words, folder.path());
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<double> found = numbers_of(outcome.out, key);
    return found.empty() ? 0 : found.front();
  };
  const double checked = step_s({"plan", "check", "job.toml", "--steps", "3"}, "planned_step_s");
  std::filesystem::remove_all(folder.path() / "corpus");
  const std::vector<std::string> scaling{"bench", "scaling", "job.toml", "--ranks",
                                         "1",     "--steps", "3"};
  const double scaled = step_s(scaling, "planned_step_s");
  const double known = step_s({"plan", "--model", "job.toml"}, "step_time_s");
  EXPECT_GT(known, 0);
  EXPECT_DOUBLE_EQ(checked, known);
  EXPECT_DOUBLE_EQ(scaled, known);
  std::filesystem::remove_all(folder.path() / "corpus");
  EXPECT_NE(step_s({"plan", "--model", "job.toml"}, "step_time_s"), known) << "the text has fewer";
}

/// A bound wide enough for a busy machine: a wrong unit, a forgotten block or a kernel that is
/// counted twice a layer is beyond it.
TEST_F(TrainedRun, APlannedStepIsLikeAMeasuredOne) {
  folder.write("text/words.txt", [] {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += fmt::format("word {} ", i);
    return text;
  }());
  folder.write("gpt.toml", R"([model]
name = "gpt2-124m"
layers = 4
hidden = 256
heads = 4
vocab = 2048
[data]
source = "tokens"
folders = ["data"]
prepare = "files"
prepare_from = ["text"]
tokenizer = "byte"
[training]
global_batch_sequences = 2
sequence_length = 128
steps = 1
)");
  // Calibrated in an instant, which may have been one in which something else ran: a few may be
  // tried, and one must do.
  double apart = 0;
  double memory = 0;
  std::string words;
  for (int attempt = 0; attempt < 6 && (attempt == 0 || std::abs(apart) > 2); ++attempt) {
    const Outcome calibrated = run({shoal_program(), "plan", "calibrate", "--nproc", "1",
                                    "--seconds", "0.002", "--rounds", "1", "--output", "here.toml"},
                                   folder.path());
    ASSERT_EQ(calibrated.code, 0) << calibrated.err;
    const Outcome checked = run({shoal_program(), "plan", "check", "gpt.toml", "--cluster",
                                 "here.toml", "--nproc", "1", "--json"},
                                folder.path());
    ASSERT_EQ(checked.code, 0) << checked.err;
    const auto number = [&](const std::string& key) {
      const auto at = checked.out.find(key + "\":");
      return at == std::string::npos ? 0.0 : std::stod(checked.out.substr(at + key.size() + 2));
    };
    EXPECT_GT(number("measured_step_s"), 0);
    EXPECT_GT(number("core_drift"), 0);
    EXPECT_GT(number("memory_drift"), 0);
    // What the two factors make of a sum of parts lies between the one and the other.
    const double now = number("planned_now_step_s") / number("planned_step_s");
    const double core = number("core_drift");
    const double of_memory = number("memory_drift");
    EXPECT_GE(now, 0.9 * std::min(core, of_memory));
    EXPECT_LE(now, 1.1 * std::max(core, of_memory));
    apart = std::log2(number("planned_step_s") / number("measured_step_s"));
    memory = number("planned_peak_bytes") / number("measured_peak_bytes");
    words = checked.out;
  }
  EXPECT_NEAR(apart, 0, 2) << words;
  EXPECT_NEAR(memory, 1, 0.05) << words;
  const Outcome scaled = run({shoal_program(), "bench", "scaling", "gpt.toml", "--ranks", "1",
                              "--cluster", "here.toml", "--steps", "3"},
                             folder.path());
  EXPECT_EQ(scaled.code, 0) << scaled.err;
  EXPECT_THAT(scaled.out, ContainsRegex("\n +1 +[0-9.]+ +[0-9.e+]+ +1.00 +100 % +[0-9.]+ +[-+]"));
  EXPECT_THAT(scaled.out, HasSubstr("scaling.svg shows it"));
  // The real matmuls and memory: figures are what they are here, but all are there.
  const auto figures = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {shoal_program(), "bench"});
    more.insert(more.end(), {"--cluster", "here.toml", "--seconds", "0.001", "--json"});
    const Outcome outcome = run(more, folder.path());
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> numbers;
    const std::regex number("(_s|flops|seconds|share_of_peak)\":([0-9.e+-]+)");
    for (auto found = std::sregex_iterator(outcome.out.begin(), outcome.out.end(), number);
         found != std::sregex_iterator(); ++found)
      numbers.push_back(std::stod((*found)[2].str()));
    return numbers;
  };
  // Five shapes in two types: FLOPs, three times, the share of the peak and the planned time of
  // each; peak, FLOPs, seconds and planned time of each type.
  const std::vector<double> products = figures({"products", "gpt.toml"});
  EXPECT_EQ(products.size(), 2u * (5 * 6 + 4));
  EXPECT_TRUE(std::all_of(products.begin(), products.end(), [](double x) { return x > 0; }));
  const std::vector<double> rates = figures({"memory", "--nproc", "1"});
  EXPECT_GE(rates.size(), 2u * 3 + 4) << "a cache and memory, and what operations get";
  EXPECT_TRUE(std::all_of(rates.begin(), rates.end(), [](double x) { return x >= 0; }));
  const Outcome drift =
      run({shoal_program(), "plan", "drift", "--cluster", "here.toml", "--seconds", "0.002"},
          folder.path());
  EXPECT_EQ(drift.code, 0) << drift.err;
  EXPECT_THAT(drift.out, HasSubstr("times as long for what the cores do"));
  const Outcome preset = run({shoal_program(), "plan", "drift", "--cluster", "cpu"}, folder.path());
  EXPECT_EQ(preset.code, 2) << "a preset was never measured";
  EXPECT_THAT(preset.err,
              HasSubstr("drift cpu: it has no [kernels]: `shoal plan calibrate` writes them"));
}

}  // namespace
}  // namespace shoal::apps::testing::trained_run_test
