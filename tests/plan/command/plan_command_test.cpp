// `shoal plan` as users and scripts call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "tests/plan/command/plan_program.h"

namespace shoal::apps::plan_command_test {
namespace {

using plan_program::Folder;
using plan_program::json_of;
using plan_program::Outcome;
using plan_program::run;
using testing::HasSubstr;

TEST(PlanCommand, GivesScriptsTheirFields) {
  const auto plan = json_of(
      "plan --model gpt2-124m --devices 8 --dp 4 --tp 2 --zero 1 --micro-batch 2 --global-batch 32 "
      "--cluster a100");
  for (const char* field :
       {"parameters", "model_state_bytes", "activation_bytes", "peak_bytes", "model_flops",
        "hardware_flops", "bubble_fraction", "step_time_s", "mfu", "hfu"})
    EXPECT_TRUE(plan.at(field).is_number()) << field;
  EXPECT_GT(plan.at("traffic_bytes").at("tensor").get<double>(), 0);
  EXPECT_GT(plan.at("traffic_bytes").at("shard").get<double>(), 0);
  EXPECT_EQ(plan.at("traffic_between_hosts").at("tensor"), false);
  EXPECT_EQ(plan.at("parameters"), 124475904);
  EXPECT_EQ(plan.at("bubble_fraction"), 0);
}

TEST(PlanCommand, AShapeAndABareNumberOfParameters) {
  const auto shape = json_of(
      "plan --layers 48 --hidden 6144 --heads 64 --vocab 51200 --seq-len 2048 --tp 8 --devices 8 "
      "--micro-batch 4 --global-batch 4");
  EXPECT_NEAR(shape.at("parameters").get<double>(), 22.07e9, 0.05e9);
  const auto states = json_of("plan --parameters 7.5e9 --devices 64 --zero 2");
  EXPECT_NEAR(states.at("model_state_bytes").get<double>(), 16.64e9, 0.01e9);
  EXPECT_FALSE(states.contains("states_fit"));
  // 16.6 GB on devices of 40 GB and, without shards, 120 GB.
  EXPECT_EQ(
      json_of("plan --parameters 7.5e9 --devices 64 --zero 2 --cluster a100-40gb").at("states_fit"),
      true);
  EXPECT_EQ(json_of("plan --parameters 7.5e9 --devices 64 --cluster a100-40gb").at("states_fit"),
            false);
  // The cookbook's mistake: on 64 devices of which 64 are model-parallel nothing is left to shard
  // over.
  const auto cut = json_of("plan --parameters 175e9 --devices 64 --tp 8 --pp 8 --zero 3");
  EXPECT_EQ(cut.at("dp"), 1);
  EXPECT_DOUBLE_EQ(cut.at("model_state_bytes").get<double>(), 16 * 175e9 / 64);
  EXPECT_DOUBLE_EQ(
      json_of("plan --parameters 1e9 --devices 64 --tp 8 --zero 3 --optimizer momentum")
          .at("model_state_bytes")
          .get<double>(),
      (2 + 2 + 4 + 4) * 1e9 / 64);
}

TEST(PlanCommand, SearchesTraceAndDrawing) {
  const auto found = json_of(
      "plan --search --model llama-3b --devices 16 --global-batch 64 --seq-len 4096 --tp 2 --count "
      "3");
  ASSERT_EQ(found.at("best").size(), 3u);
  for (const auto& candidate : found.at("best"))
    EXPECT_EQ(candidate.at("tp"), 2) << "what is given stays";
  const auto& limits = found.at("limits");
  for (const char* part : {"compute", "recomputation", "communication", "bubbles", "memory"})
    EXPECT_TRUE(limits.at(part).is_number()) << part;
  std::vector<std::string> conditions;
  for (const auto& turn : found.at("turning_points")) {
    conditions.push_back(turn.at("condition"));
    if (turn.at("winner").is_null()) continue;
    EXPECT_NE(turn.at("then"), turn.at("now")) << turn;
    EXPECT_EQ(turn.at("winner").at("tp"), 2) << "what is given stays";
  }
  EXPECT_THAT(conditions, testing::ElementsAre("links inside hosts", "links between hosts",
                                               "device memory", "micro-batch"));
  const Folder folder;
  const std::string trace = (folder.path / "t.json").string();
  const std::string svg = (folder.path / "s.svg").string();
  const Outcome drawn = run("plan --model gpt3-13b --pp 8 --devices 8 --global-batch 16 --trace " +
                            trace + " --svg " + svg + " --straggler 2:1.5");
  EXPECT_EQ(drawn.code, 0) << drawn.text;
  std::ifstream file(trace);
  const auto events = nlohmann::json::parse(file).at("traceEvents");
  EXPECT_GT(events.size(), 8u * 16 * 2);
  EXPECT_GT(std::filesystem::file_size(svg), 1000u);
}

// chrome://tracing and Perfetto read: complete events with microseconds, and names of threads.
TEST(PlanCommand, TracesHaveTheFieldsThatPerfettoReads) {
  const Folder folder;
  const std::string trace = (folder.path / "t.json").string();
  const auto plan = json_of(
      "plan --model gpt3-13b --pp 4 --devices 4 --global-batch 8 --schedule zb-h1 --trace " +
      trace);
  std::ifstream file(trace);
  const auto read = nlohmann::json::parse(file);
  std::map<int, double> end;
  int named = 0;
  int computed = 0;
  for (const auto& event : read.at("traceEvents")) {
    if (event.at("ph") == "M") {
      named += event.at("name") == "thread_name";
      EXPECT_TRUE(event.at("args").at("name").is_string());
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    EXPECT_TRUE(event.at("name").is_string());
    EXPECT_EQ(event.at("pid"), 0);
    const double begin = event.at("ts");
    const double duration = event.at("dur");
    double& before = end[event.at("tid").get<int>()];
    EXPECT_GE(begin, before - 0.01) << "a rank does one thing at a time: " << event;
    EXPECT_GE(duration, 0);
    before = begin + duration;
    const std::string kind = event.at("cat");
    computed += kind == "F" || kind == "I" || kind == "W";
  }
  EXPECT_EQ(named, 4);
  EXPECT_EQ(computed, 3 * 4 * 8)
      << "forward, input and weight gradient of each rank and micro-batch";
  double last = 0;
  for (const auto& [rank, at] : end) last = std::max(last, at);
  EXPECT_LE(last * 1e-6, plan.at("simulated").at("step_time_s").get<double>() + 1e-6);
}

TEST(PlanCommand, DrawsPlots) {
  const Folder folder;
  const std::string plots = (folder.path / "plots").string();
  EXPECT_EQ(run("plan --model gpt3-13b --pp 8 --devices 8 --global-batch 16 --plots " + plots).code,
            0);
  EXPECT_EQ(run("plan --search --model gpt2-1.5b --devices 8 --global-batch 16 --count 3 --plots " +
                plots)
                .code,
            0);
  for (const char* name : {"memory.svg", "time.svg", "search.svg"}) {
    std::ifstream file(plots + "/" + name);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(text.starts_with("<svg ")) << name;
    EXPECT_TRUE(text.ends_with("</svg>\n")) << name;
  }
}

// Exponential failures at the cluster's rate: 1024 devices fail every two days or so, and the run
// takes what Daly's model says of it.
TEST(PlanCommand, SimulatesARunWithFailures) {
  const std::string words =
      "plan --model llama-8b --cluster h100 --devices 1024 --zero 1 --seq-len 8192 --global-batch "
      "1024 --hours 4000 --failures ";
  const auto one = json_of(words + "1");
  const auto again = json_of(words + "1");
  const auto other = json_of(words + "2");
  EXPECT_EQ(one.at("simulated_run"), again.at("simulated_run"));
  EXPECT_NE(one.at("simulated_run"), other.at("simulated_run"));
  EXPECT_GT(one.at("simulated_run").at("failures").get<int>(), 20);
  EXPECT_NEAR(one.at("simulated_run").at("goodput").get<double>(),
              one.at("run").at("goodput").get<double>(), 0.01);
}

TEST(PlanCommand, SimulatesCollectivesOfThousandsOfRanks) {
  const auto even = json_of(
      "plan collective --algorithm halving_doubling --ranks 4096 --bytes 1677721600 --latency 1e-5 "
      "--bandwidth 1e10");
  // 2 log2 n latencies and 2 (n - 1)/n of the bytes.
  EXPECT_NEAR(even.at("last_done_s").get<double>() / (24 * 1e-5 + 2 * 4095 / 4096.0 * 0.167772160),
              1, 1e-6);
  const auto slow = json_of("plan collective --ranks 64 --bytes 1e9 --straggler 5:3,9:2");
  EXPECT_GT(slow.at("last_done_s").get<double>(),
            2 * json_of("plan collective --ranks 64 --bytes 1e9").at("last_done_s").get<double>());
}

TEST(PlanCommand, SaysWhatIsGatheredWhen) {
  const Outcome sharded = run("plan --model gpt2-tiny --devices 8 --zero 3 --gathers");
  EXPECT_EQ(sharded.code, 0);
  EXPECT_THAT(sharded.text, HasSubstr("  gather embedding, forward model\n  gather blocks.0, "
                                      "forward embedding\n  gather blocks.1, forward blocks.0\n"));
  EXPECT_THAT(sharded.text,
              HasSubstr("release blocks.0, backward embedding\n  release embedding\n"));
  EXPECT_EQ(json_of("plan --model gpt2-tiny --devices 8 --zero 3 --gathers").at("gathers")[0],
            "gather embedding");
  EXPECT_THAT(run("plan --model gpt2-tiny --devices 8 --zero 2 --gathers").text,
              HasSubstr("Nothing is gathered"));
}

TEST(PlanCommand, SaysWhoIsWhere) {
  const std::string words =
      "plan --model moe-tiny --devices 16 --tp 2 --pp 2 --shard 2 --ep 2 --global-batch 8 --zero 1 "
      "--mesh";
  const Outcome shown = run(words);
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_THAT(shown.text, HasSubstr("  rank    host            pp  dp_replicate      dp_shard"
                                    "            tp            ep       ep_data\n"));
  // The second node of eight holds the second stage.
  EXPECT_THAT(shown.text, HasSubstr("    13       1             1             1             0"
                                    "             1             1             2\n"));
  const auto ranks = json_of(words).at("ranks");
  ASSERT_EQ(ranks.size(), 16u);
  EXPECT_EQ(ranks[13], nlohmann::json::parse(R"({"pp": 1, "dp_replicate": 1, "dp_shard": 0,
    "cp": 0, "tp": 1, "ep": 1})"));
}

TEST(PlanCommand, SaysWhoIsWhereOfAJobAndOfDegreesAlone) {
  const std::string table =
      "  rank    host      dp_shard            tp\n"
      "     0       0             0             0\n"
      "     1       0             0             1\n"
      "     2       0             1             0\n"
      "     3       0             1             1\n";
  EXPECT_EQ(run("plan --mesh --dp 2 --tp 2").text, table);
  EXPECT_EQ(run("plan --mesh --devices 4 --tp 2").text, table);
  const Folder folder;
  const std::string job =
      folder.write("job.toml",
                   "[model]\nname = \"gpt2-tiny\"\n[training]\nglobal_batch_sequences = 4\n"
                   "sequence_length = 64\nsteps = 1\n[data]\nfolders = [\"none\"]\n"
                   "[parallelism]\nranks = 4\ntensor_parallel_degree = 2\n");
  EXPECT_THAT(run("plan --mesh --model " + job).text, HasSubstr(table));
  EXPECT_THAT(run("plan --mesh --devices 6 --tp 4").text,
              HasSubstr("tp x pp x cp = 4 must divide"));
  EXPECT_EQ(run("plan --mesh --devices 4 --dp 2 --tp 2").text, table);
  for (const char* dp : {"1", "3", "4", "4000000000000000000", "-2"}) {
    EXPECT_THAT(
        run(fmt::format("plan --mesh --devices 4 --tp 2 --dp {}", dp)).text,
        HasSubstr(fmt::format("--dp {}: 4 devices / (tp x pp x cp = 2) are 2 data ranks", dp)));
  }
  EXPECT_THAT(run("plan --mesh --dp 3 --ep 2").text, HasSubstr("--ep 2: must divide tp x cp x dp"));
  EXPECT_THAT(run("plan --mesh --dp 2 --zero 1").text, HasSubstr("--zero: belongs to a model"));
}

TEST(PlanCommand, NonsenseNamesFileKeyAndRule) {
  const Folder folder;
  const auto refused = [&](const std::string& words, int code, const std::string& what) {
    const Outcome outcome = run("plan " + words);
    EXPECT_EQ(outcome.code, code) << words << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(what)) << words;
  };
  refused("--model gpt2 --devices -4", 2, "devices = -4: must be at least 1");
  refused("--model gpt2 --devices 0", 2, "--devices: 0");
  refused("--model gpt2 --micro-batch 0", 2, "--micro-batch: 0: must not be 0");
  refused("--parameters 1e9 --tp 9000000 --pp 9000000 --dp 9000000", 2, "--tp 9000000: tp x pp");
  refused("--model gpt2 --tp 9000000 --pp 9000000 --cp 9000000 --devices 8", 2,
          "tp 9000000 x pp 9000000 x cp 9000000: must be at most");
  refused("--model gpt2 --dp 9000000 --tp 12 --pp 12 --devices 8", 78,
          "devices = 1.296e+09: dp x tp x pp x cp");
  refused("--model gpt2 --search --global-batch 8 --devices 8 --tp 9000000 --pp 9000000", 78,
          "no mesh of 8 devices");
  refused("--model gpt2 --dp 3037000500 --tp 3037000500", 2,
          "--dp 3037000500: must be at most 10000000");
  refused("--model gpt2 --zero -2", 2, "--zero");
  refused("--model gpt-9", 2, "--model gpt-9: no such model");
  refused("--model gpt2 --cluster mars", 66, "mars: neither a file nor a preset");
  refused("--model missing.json", 66, "missing.json: no such file");
  refused("--model gpt2 --tp 5 --devices 40", 78, "tp = 5: must divide heads = 12");
  refused("--layers -2 --hidden 64 --heads 2 --vocab 100", 78, "layers = -2: must lie between 1");
  refused("--layers 99999999 --hidden 64 --heads 2 --vocab 100", 78,
          "layers = 99999999: must lie between 1 and 100000");
  refused("--layers 10 --hidden 64 --heads 2 --vocab 100 --experts 99999999", 78,
          "experts = 99999999: 10 layers can have 100000 each");
  refused("--model gpt2 --tokens 1e9 --bytes-per-token -2", 78,
          "bytes-per-token = -2: must be positive");
  refused("--model gpt2 --tokens 1e9 --failures -3", 2, "--failures");
  refused("--model gpt2 --search --global-batch 8 --count 0", 2, "--count");
  refused("inference --model gpt2 --context -4", 2, "--context");
  refused("learn zero --parameters inf --zero 1 --ranks 4", 2,
          "parameters = inf: must be positive");
  refused("collective --ranks 8 --algorithm pigeon", 2, "--algorithm pigeon: must be one of");
  refused("collective --ranks 8 --straggler 8:2", 2, "--straggler 8: there are 8 ranks");
  refused("--parameters -1", 2, "--parameters -1: must be positive");
  refused("--model gpt2 --global-batch 3 --dp 2", 78, "global-batch = 3");
  refused("--model gpt2 --dp 8 --zero 2 --reduce-every-micro-batch", 2,
          "--reduce-every-micro-batch: stages 2 and 3");
  refused("learn iterations --samples 9000000000000000000 --batch 4000000000 --ranks 4000000000", 2,
          "samples, batch and ranks");
  refused("learn collectives --samples 9000000 --batch 1 --ranks 1 --epochs 9000000000000000", 2,
          "more than 2^53");
  refused("learn ring-tree --ranks 4 --bytes 1e6 --latency inf", 2, "latency = inf s");
  refused("--model gpt2 --pp 2 --devices 2 --straggler 1:inf", 2,
          "straggler 1: the factor must be positive");
  refused("--model gpt2 --recompute some", 2, "--recompute some");
  refused("--model gpt2 --search", 2, "--global-batch");
  refused("--model gpt2 --straggler 1", 2, "--straggler 1: must be rank:factor");
  refused("--model gpt2 --svg /nonexistent/x.svg", 74, "/nonexistent/x.svg: cannot be written");
  refused("", 2, "name a --model");
  const std::string config =
      folder.write("config.json", R"({"model_type": "llama", "hidden_size": 4096})");
  refused("--model " + config, 78, "config.json: num_hidden_layers is missing");
  const std::string cluster =
      folder.write("cluster.toml", "preset = \"a100\"\n[between]\nbandwidth = 0\n");
  refused("--model gpt2 --cluster " + cluster, 78,
          "cluster.toml: a100: between.bandwidth = 0: must be positive");
  refused("learn zero --parameters 1e9 --zero 7 --ranks 4", 2,
          "zero = 7: must lie between 0 and 3");
  refused("learn ring-tree --ranks 4 --bytes 1e6 --bandwidth 0", 2, "must be positive");
}

// Nothing that is typed is ignored.
TEST(PlanCommand, OptionsThatWouldChangeNothingAreRefused) {
  const auto refused = [](const std::string& words, const std::string& what) {
    const Outcome outcome = run("plan " + words);
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(what)) << words;
  };
  for (const char* option : {"--vocab 100", "--kv-heads 4", "--ffn 64", "--layers 2", "--experts 8",
                             "--gated", "--untied"}) {
    refused(std::string("--model gpt2 ") + option,
            "belongs to a shape, and --model gpt2 has its own");
  }
  for (const char* option :
       {"--model gpt2", "--search", "--tokens 1e9", "--cp 2", "--micro-batch 4"})
    refused(std::string("--parameters 1e9 ") + option, "means nothing beside --parameters");
  refused("--parameters 1e9 --tp -2", "--tp -2: must lie between 1");
  refused("--parameters 1e9 --devices 7 --tp 2", "--devices 7: tp x pp = 2 must divide it");
  refused("--parameters 1e9 --devices 8 --dp 3", "--devices 8: the mesh dp 3");
  refused("--layers 2 --hidden 64 --heads 2 --vocab 100 --experts-per-token 1",
          "--experts-per-token: needs --experts");
  refused("--model gpt2 --set training.steps=3", "--set: sets a key of a job file");
  for (const char* option : {"--count 3", "--precisions fp32", "--schedules zb-v"})
    refused(std::string("--model gpt2 ") + option, "needs --search");
  for (const char* option : {"--mesh", "--gathers", "--trace t.json", "--svg s.svg",
                             "--straggler 1:2", "--failures 1"}) {
    refused(std::string("--model gpt2 --search --global-batch 8 --tokens 1e9 ") + option,
            "is of one mesh");
  }
  refused("--model gpt2 --search --global-batch 8 --schedule 1f1b --schedules zb-v",
          "--schedule: --schedules names");
  refused("--model gpt2 --bytes-per-token 4", "--bytes-per-token: name the run");
  refused("--model gpt2 --failures 1", "--failures: name the run");
  refused("--model gpt2 --devices 8 --shard 4", "--shard: ZeRO 0 shards nothing");
  refused("--model gpt2 --devices 8 --zero 2 --prefetch 2",
          "--prefetch: ZeRO 2 gathers no parameters");
  refused("--model gpt2 --devices 8 --zero 2 --keep-gathered",
          "--keep-gathered: ZeRO 2 gathers no parameters");
  refused("--model gpt2 --vpp 2", "--vpp: a pipeline of one rank has one stage");
  refused("inference --model mlp-digits", "mlp-digits makes no tokens");
  refused("--model gpt2 --ulysses", "--ulysses: is an exchange between context ranks");
  refused("--model gpt2 --expert-imbalance 2", "--expert-imbalance: the model has no experts");
  refused("--model gpt2 --schedule-file x.csv --schedule zb-h1",
          "--schedule: the schedule is that of --schedule-file");
  refused("--json learn zero --parameters 1e9 --zero 1 --ranks 4",
          "--json: means nothing beside \"learn\"");
}

// Llama 3 8B on an H100 at 3 an hour: the decoded token's seconds are weights and cache over the
// memory's bandwidth.
TEST(PlanCommand, InferenceHasACost) {
  const auto cost = json_of("plan inference --model llama-8b --cluster h100 --context 4096");
  EXPECT_EQ(cost.at("fits"), true);
  EXPECT_NEAR(cost.at("cost_per_million").at("made_tokens").get<double>(),
              (2 * 8030261248 + 4096 * 131072.0) / 3352e9 * 1e6 * 3 / 3600, 1e-9);
  EXPECT_EQ(json_of("plan inference --model llama-405b --cluster h100").at("fits"), false);
  EXPECT_THAT(run("plan inference --model llama-405b --cluster h100").text,
              HasSubstr("DOES NOT FIT one device"));
}

TEST(PlanCommand, LessonsForPrograms) {
  for (const char* words : {"plan learn zero --parameters 7.5e9 --zero 1 --ranks 64",
                            "plan learn --json zero --parameters 7.5e9 --zero 1 --ranks 64"}) {
    const auto lesson = std::string(words).find("--json") == std::string::npos
                            ? json_of(words)
                            : nlohmann::json::parse(run(words).text);
    EXPECT_DOUBLE_EQ(lesson.at("value").get<double>(), 7.5e9 * (4 + 12.0 / 64));
    EXPECT_THAT(lesson.at("line").get<std::string>(), HasSubstr("31.41 GB"));
  }
}

TEST(PlanCommand, SimulatesAScheduleFromAFile) {
  const Folder folder;
  const std::string file = folder.write("two.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const auto plan = json_of("plan --model gpt2-124m --schedule-file " + file);
  EXPECT_EQ(plan.at("simulated").at("schedule"), file);
  EXPECT_GT(plan.at("simulated").at("step_time_s").get<double>(), 0);
  EXPECT_GT(plan.at("simulated").at("bubble_fraction").get<double>(), 0.2)
      << "two ranks and two micro-batches: a third of the time";
  // The table decides about the memory, and where the head makes its gradient: gpipe, which holds
  // all micro-batches, has more, and other products of the head than 1f1b.
  const std::string gpipe =
      folder.write("gpipe.csv", schedule::to_csv(schedule::make_schedule("gpipe", 2, 1, 4)));
  const std::string words = "plan --model gpt2-124m --devices 2 --pp 2 --micro-batch 2 ";
  for (const char* of : {"--cluster a100", "--cluster cpu --precision fp32"}) {
    const auto of_file = json_of(words + of + " --schedule-file " + gpipe);
    const auto named = json_of(words + of + " --global-batch 8 --schedule gpipe");
    EXPECT_EQ(of_file.at("memory"), named.at("memory")) << of;
    EXPECT_EQ(of_file.at("traffic_bytes"), named.at("traffic_bytes")) << of;
    EXPECT_NE(of_file.at("memory"), json_of(words + of + " --global-batch 8").at("memory")) << of;
  }
  const std::string text = run("plan --model gpt2-124m --cluster cpu --devices 2 --precision fp32 "
                               "--micro-batch 2 --schedule-file " +
                               gpipe)
                               .text;
  EXPECT_THAT(text, HasSubstr("schedule " + gpipe + ", 4 micro-batches"));
  EXPECT_THAT(text, HasSubstr("head: the gradient of its matrix is made in the backward pass"));
  EXPECT_THAT(
      run("plan --model gpt2-124m --schedule-file " + folder.write("bad.csv", "0F0\n1B0\n")).text,
      HasSubstr("bad.csv"));
  EXPECT_THAT(run("plan --model gpt2-124m --pp 4 --schedule-file " + file).text,
              HasSubstr("pp = 4: schedule " + file + " is of 2 ranks"));
}

/// Every ```sh block of the page is run, and the ```text block behind it must be its output.
TEST(TransformerMath, EveryNumberComesFromTheCommandBesideIt) {
  std::ifstream page(std::string(SHOAL_DOCS) + "/transformer-math.md");
  ASSERT_TRUE(page);
  std::string fence;
  std::string command;
  std::string expected;
  int checked = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) {
      if (fence == "```text" && !command.empty()) {
        ASSERT_TRUE(command.starts_with("shoal ")) << command;
        EXPECT_EQ(run(command.substr(6)).text, expected) << command;
        command.clear();
        ++checked;
      }
      const bool opening = fence.empty();
      fence = opening ? line : "";
      if (opening) expected.clear();
    } else if (fence == "```sh") {
      command = line;
    } else if (fence == "```text") {
      expected += line + "\n";
    }
  }
  EXPECT_GE(checked, 10);
  EXPECT_TRUE(command.empty()) << "no output stands behind: " << command;
}

}  // namespace
}  // namespace shoal::apps::plan_command_test
