// What `shoal bench` does without any rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "apps/shoal/cluster_file.h"
#include "shoal/plan/operations.h"
#include "tests/apps/program.h"

namespace shoal::apps::testing::bench_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Bench, SaysByWhatCostsAlgorithmsAreChosen) {
  const Folder folder;
  const auto print = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {shoal_program(), "bench", "collectives", "--nproc", "8", "--hosts",
                               "2", "--print-choice"});
    return run(more, folder.path());
  };
  const Outcome plain = print({});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, StartsWith("link costs: defaults\ninside a host 15 us and 2 GB/s, between "
                                    "hosts 30 us and 1.15 GB/s;"));
  // Where a message takes ten seconds whatever its size, one round is best.
  folder.write("far.toml",
               "[tcp]\ninside_latency_s = 10\nbetween_latency_s = 10\ninside_bandwidth = "
               "1e12\nbetween_bandwidth = 1e12\n");
  const Outcome far = print({"--link-costs", "far.toml"});
  EXPECT_EQ(far.code, 0) << far.err;
  EXPECT_THAT(
      far.out,
      StartsWith("link costs: calibrated from far.toml\ninside a host 1e+07 us and 1000 GB/s,"));
  EXPECT_THAT(far.out, ContainsRegex("all_reduce +268435456 +one_shot"));
  EXPECT_THAT(plain.out, ::testing::Not(ContainsRegex("all_reduce +268435456 +one_shot")));
  folder.write("none.toml", "name = \"here\"\n");
  const Outcome none = print({"--link-costs", "none.toml"});
  EXPECT_EQ(none.code, 78);
  EXPECT_THAT(none.err, HasSubstr("none.toml: has no section [tcp]"));
}

TEST(Bench, RefusesWhatMakesNoSense) {
  const Folder folder;
  const auto words = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{shoal_program(), "bench", "collectives"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = run(all, folder.path());
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  for (const char* range :
       {"2", "8:4", "8abc", "8:16x", "-8", ":8", "8:", "8:99999999999999999999"}) {
    EXPECT_THAT(words({fmt::format("--bytes={}", range)}),
                HasSubstr(fmt::format("--bytes {} is not LEAST:MOST in bytes", range)));
  }
  EXPECT_THAT(words({"--nproc", "2", "--hosts", "3"}),
              HasSubstr("3 hosts for 2 ranks: --nproc 3 at least"));
  EXPECT_THAT(words({"--op", "nothing"}), HasSubstr("no operation 'nothing': one of all_gather,"));
  EXPECT_THAT(words({"--nproc", "1", "--op", "sendrecv"}), HasSubstr("sendrecv is between ranks"));
  EXPECT_THAT(words({"--algorithms", "all_reduce=ring"}),
              HasSubstr("--algorithms goes with --transport tcp"));
  EXPECT_THAT(words({"--rails", "2"}),
              HasSubstr("--rails is of TCP, and shared memory carries the bytes"));
  EXPECT_THAT(words({"--routes", "measured"}),
              HasSubstr("--routes is of TCP, and shared memory carries the bytes"));
  EXPECT_THAT(words({"--routes", "short", "--transport", "tcp"}), HasSubstr("--routes"));
  EXPECT_THAT(words({"--rails", "65", "--transport", "tcp"}), HasSubstr("--rails"));
  EXPECT_THAT(words({"--tls", "on"}),
              HasSubstr("--tls is of TCP, and shared memory carries the bytes"));
  EXPECT_THAT(words({"--tls", "maybe", "--transport", "tcp"}), HasSubstr("--tls"));
  EXPECT_THAT(words({"--rank", "1"}), HasSubstr("--rendezvous and --rank go together"));
}

TEST(Bench, ScalesJobsOnly) {
  const Folder folder;
  const auto outcome = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{shoal_program(), "bench", "scaling"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all, folder.path());
  };
  const Outcome model = outcome({"gpt2-124m"});
  EXPECT_EQ(model.code, 2);
  EXPECT_THAT(model.err, HasSubstr("scaling gpt2-124m: name a job file (.toml)"));
  EXPECT_THAT(outcome({"none.toml", "--no-plan"}).err, HasSubstr("none.toml"));
  EXPECT_THAT(outcome({"none.toml", "--ranks", "0"}).err, HasSubstr("--ranks"));
  EXPECT_THAT(outcome({"none.toml", "--steps", "2"}).err, HasSubstr("--steps"));
  EXPECT_THAT(outcome({"none.toml", "--ranks", "3", "--cluster", "cpu"}).err,
              HasSubstr("--cluster cpu: it is of "));
}

/// Runs `shoal bench` with a fake machine (fake_app.cpp).
Outcome bench(const Folder& folder, std::vector<std::string> more) {
  more.insert(more.begin(), {shoal_program(), "bench"});
  return run(more, folder.path());
}

/// A job of two ranks.
constexpr const char* kJob = R"([job]
name = "small"
[model]
name = "gpt2-124m"
layers = 2
hidden = 64
heads = 4
vocab = 1000
[data]
source = "tokens"
folders = ["data"]
[parallelism]
ranks = 2
[training]
global_batch_sequences = 4
sequence_length = 128
steps = 3
)";

/// A job of one rank on the table that ships with Shoal.
constexpr const char* kDigitsJob = R"([job]
name = "d"
[model]
family = "mlp"
widths = [32]
[data]
source = "digits"
[training]
global_batch_sequences = 4
steps = 3
)";

plan::Cluster cluster_in(const Folder& folder) { return load_cluster(folder.path() / "here.toml"); }

// The benches write what a calibration writes, and the plan goes by it.
TEST(MachineBench, WritesWhatACalibrationWrites) {
  const Folder folder;
  const auto outcome = [&](std::vector<std::string> more) {
    const Outcome one = bench(folder, std::move(more));
    EXPECT_EQ(one.code, 0) << one.err;
    return one.out;
  };
  const Outcome calibrated =
      run({shoal_program(), "plan", "calibrate", "--nproc", "1", "--output", "here.toml"},
          folder.path());
  ASSERT_EQ(calibrated.code, 0) << calibrated.err;
  const plan::Cluster known = cluster_in(folder);
  EXPECT_NEAR(plan::product_s(known, ElementType::kF32, 8e7), 20e-6 + 1e-3, 1e-9);
  EXPECT_NEAR(plan::memory_s(known, 1.2e7), 2e-6 + 1e-3, 1e-9);
  // A machine that was measured wrongly is put right, and nothing else changes.
  plan::Cluster wrong = known;
  wrong.device.peak_flops = {{ElementType::kF32, 1}, {ElementType::kBF16, 1}};
  wrong.device.memory_bandwidth = wrong.host.memory_bandwidth = wrong.host.link_bandwidth = 1;
  folder.write("here.toml", to_toml(wrong));
  EXPECT_THAT(outcome({"memory", "--cluster", "here.toml", "--update"}),
              HasSubstr("written to here.toml: device.memory_bandwidth"));
  EXPECT_THAT(outcome({"products", "--cluster", "here.toml", "--update"}),
              HasSubstr("written to here.toml: device.peak_flops"));
  EXPECT_EQ(cluster_in(folder), known);
  const Outcome storage = bench(folder, {"storage", "--cluster", "here.toml", "--update", "--bytes",
                                         "1048576", "--rounds", "1"});
  // Where this folder is in memory there is no disk to measure.
  if (storage.code == 81) {
    EXPECT_THAT(storage.err, HasSubstr("still in memory"));
    return;
  }
  EXPECT_EQ(storage.code, 0) << storage.err;
  EXPECT_THAT(storage.out, HasSubstr("written to here.toml: storage"));
  const plan::Cluster stored = cluster_in(folder);
  EXPECT_GT(stored.storage.write_bandwidth, 0);
  EXPECT_GT(stored.storage.read_bandwidth, 0);
  plan::Cluster without = stored;
  without.storage = {};
  EXPECT_EQ(without, known);
  const Outcome planned = run({shoal_program(), "plan", "--model", "gpt2-124m", "--cluster",
                               "here.toml", "--tokens", "1e9", "--no-sequence-parallel"},
                              folder.path());
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("with a checkpoint of")) << "the plan knows of storage";
}

TEST(MachineBench, MeasuresAsTheJobRuns) {
  const Folder folder;
  folder.write("job.toml", kJob);
  const Outcome products = bench(folder, {"products", "job.toml", "--set",
                                          "parallelism.threads_per_rank=1", "--seconds", "0.5"});
  ASSERT_EQ(products.code, 0) << products.err;
  EXPECT_THAT(folder.read("products.txt"), StartsWith("ranks 2 threads 1 "));
  EXPECT_THAT(folder.read("products.txt"), HasSubstr(" seconds 0.5 shapes 5\n"));
  // 4 samples of 128 tokens on two ranks, in one micro-batch.
  EXPECT_THAT(products.out, ContainsRegex("qkv +256 +64 +192 +2 "));
  EXPECT_THAT(products.out, HasSubstr("f32: a plain loop reaches 160 GFLOP/s"));
  EXPECT_THAT(products.out, HasSubstr("bf16: a plain loop reaches 320 GFLOP/s"));
  EXPECT_THAT(products.out, HasSubstr("what `shoal plan` counts by the preset cpu"));
  const Outcome model = bench(folder, {"products", "gpt2-124m", "--micro-batch", "2", "--seq-len",
                                       "32", "--no-bf16", "--json", "--nproc", "1"});
  ASSERT_EQ(model.code, 0) << model.err;
  EXPECT_THAT(model.out, HasSubstr("\"layers\":\"qkv\",\"rows\":64,\"in\":768,\"out\":2304"));
  EXPECT_THAT(model.out, Not(HasSubstr("bf16")));
  // Two ranks write in the folder of the runs, or where it would be.
  const Outcome storage =
      bench(folder, {"storage", "job.toml", "--bytes", "2097152", "--rounds", "2", "--json"});
  ASSERT_EQ(storage.code, 0) << storage.err;
  EXPECT_THAT(storage.out,
              StartsWith("{\"folder\":\".\",\"writers\":2,\"rounds\":[{\"bytes\":2097152"));
  // 2 blocks of 49,984 parameters, embeddings of 64,000 and 65,536, a norm of 128: with both
  // moments of Adam 12 bytes each.
  EXPECT_THAT(storage.out, HasSubstr("\"checkpoint\":{\"job\":\"job.toml\",\"bytes\":2755584.0}"));
  std::filesystem::create_directories(folder.path() / "runs");
  EXPECT_THAT(bench(folder, {"storage", "job.toml", "--bytes", "1048576", "--rounds", "1"}).out,
              StartsWith("runs: written by 2 ranks"));
}

TEST(MachineBench, RefusesWhatMakesNoSense) {
  const Folder folder;
  folder.write("job.toml", kJob);
  constexpr const char* kTwo = "preset = \"cpu\"\ndevices_per_host = 2\n";
  folder.write("two.toml", kTwo);
  const auto words = [&](const std::vector<std::string>& more, int code = 2) {
    const Outcome outcome = bench(folder, more);
    EXPECT_EQ(outcome.code, code) << more[0] << " " << more[1] << outcome.out << outcome.err;
    return outcome.err;
  };
  for (const char* what : {"products", "memory", "storage"}) {
    EXPECT_THAT(words({what, "--update"}), HasSubstr("--update: name with --cluster the file"));
    EXPECT_THAT(words({what, "--update", "--cluster", "cpu"}), HasSubstr("--update: name with"));
    EXPECT_THAT(words({what, "--cluster", "two.toml"}),
                HasSubstr("--cluster two.toml: its hosts have 2 ranks at work, and 1 is measured"));
    EXPECT_THAT(words({what, "--cluster", "none.toml"}, 66), HasSubstr("neither a file nor"));
    EXPECT_THAT(words({what, "--nproc", "65"}), HasSubstr("--nproc"));
    EXPECT_THAT(words({what, "--seconds", "0"}), HasSubstr("--seconds"));
  }
  EXPECT_EQ(folder.read("two.toml"), kTwo);
  // What this host measures is neither a GPU's nor the storage of many hosts.
  constexpr const char* kGpu = "preset = \"h100\"\ndevices_per_host = 1\n";
  folder.write("gpu.toml", kGpu);
  for (const char* what : {"products", "memory"}) {
    EXPECT_THAT(words({what, "--update", "--cluster", "gpu.toml"}),
                HasSubstr("--update: gpu.toml describes devices of another runtime"));
  }
  EXPECT_EQ(folder.read("gpu.toml"), kGpu);
  constexpr const char* kHosts = "preset = \"cpu\"\ndevices_per_host = 1\nhosts = 3\n";
  folder.write("hosts.toml", kHosts);
  EXPECT_THAT(words({"storage", "--update", "--cluster", "hosts.toml"}),
              HasSubstr("--update: hosts.toml has 3 hosts"));
  EXPECT_EQ(folder.read("hosts.toml"), kHosts);
  folder.write("many.toml", "preset = \"cpu\"\ndevices_per_host = 65\n");
  EXPECT_THAT(words({"memory", "--cluster", "many.toml"}), Not(HasSubstr("--nproc 65")))
      << "more than can be measured together";
  EXPECT_THAT(words({"products", "gpt2-124m", "--update", "--cluster", "two.toml", "--nproc", "2"}),
              HasSubstr("leave the model out"));
  EXPECT_THAT(words({"products", "--seq-len", "3"}), HasSubstr("go with a model"));
  EXPECT_THAT(words({"products", "gpt2-124m", "--set", "model.layers=1"}),
              HasSubstr("--set sets a key of a job file, and there is none"));
  EXPECT_THAT(words({"products", "gpt3-124m"}), HasSubstr("no such model"));
  EXPECT_THAT(words({"products", "gpt2-124m", "--micro-batch", "1000000"}, 81),
              HasSubstr("MB are available"));
  for (const char* what : {"products", "storage"}) {
    EXPECT_THAT(words({what, "job.toml", "--set", "parallelism.ranks=128", "--set",
                       "training.global_batch_sequences=128"}),
                HasSubstr("it has 128 ranks: say with --nproc"));
  }
  EXPECT_THAT(words({"memory", "--nproc", "0"}), HasSubstr("--nproc"));
  EXPECT_THAT(words({"storage", "gpt2-124m"}), HasSubstr("name a job file (.toml)"));
  EXPECT_THAT(words({"storage", "--set", "a.b=1"}), HasSubstr("--set goes with a job file"));
  EXPECT_THAT(words({"storage", "--folder", "none"}, 66), HasSubstr("none is not a folder"));
  EXPECT_THAT(words({"storage", "--bytes", "1000"}), HasSubstr("--bytes"));
  EXPECT_THAT(words({"storage", "--rounds", "0"}), HasSubstr("--rounds"));
}

// A matmul of 64 rows of logits, where the tokenizer will have thousands, would pass for the job's.
TEST(MachineBench, RefusesAJobOfUnknownSizes) {
  const Folder folder;
  folder.write("job.toml", kJob);
  folder.write("digits.toml", kDigitsJob);
  for (const char* what : {"products", "storage"}) {
    const Outcome text = bench(folder, {what, "job.toml", "--set", "model.vocab=0"});
    EXPECT_EQ(text.code, 66) << text.out << text.err;
    EXPECT_THAT(text.err, HasSubstr("job.toml: model.vocab follows from the data"));
    EXPECT_THAT(text.err, HasSubstr("`shoal data prepare ... --out data` makes the data; or --set "
                                    "model.vocab=N"));
    const Outcome table = bench(
        folder, {what, "digits.toml", "--set", "data.source=csv", "--set", "data.file=none.csv"});
    EXPECT_EQ(table.code, 66) << table.out << table.err;
    EXPECT_THAT(table.err, HasSubstr("data.file: cannot open none.csv"));
  }
  const Outcome length = bench(folder, {"products", "digits.toml", "--seq-len", "8"});
  EXPECT_EQ(length.code, 2) << length.out;
  EXPECT_THAT(length.err, HasSubstr("--seq-len is of a transformer"));
}

TEST(MachineBench, KnowsTheSizesOfTablesAndBytes) {
  const Folder folder;
  folder.write("job.toml", kJob);
  folder.write("digits.toml", kDigitsJob);
  const auto products = [&](std::vector<std::string> more) {
    more.insert(more.begin(), "products");
    const Outcome outcome = bench(folder, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  // 8 x 8 pixels, and 10 digits.
  const std::string digits = products({"digits.toml"});
  EXPECT_THAT(digits, ContainsRegex("layers.0 +4 +64 +32 +1 "));
  EXPECT_THAT(digits, ContainsRegex("layers.1 +4 +32 +10 +1 "));
  EXPECT_THAT(
      products({"digits.toml", "--set", "data.source=regression", "--set", "data.features=7"}),
      ContainsRegex("layers.1 +4 +32 +1 +1 "));
  // 256 bytes and the end of a document, in a multiple of 64 rows.
  EXPECT_THAT(products({"job.toml", "--set", "model.vocab=0", "--set", "data.prepare=files",
                        "--set", "data.prepare_from=[\"none\"]", "--set", "data.tokenizer=byte"}),
              ContainsRegex("output +[0-9]+ +64 +320 +1 "));
}

// A rate of memory in the place of the disk's would make checkpoints take no time in a plan.
TEST(MachineBench, WritesNoRateOfMemoryIntoAFile) {
  const Folder folder;
  constexpr const char* kOne = "preset = \"cpu\"\ndevices_per_host = 1\n";
  folder.write("here.toml", kOne);
  const Outcome outcome =
      bench(folder, {"storage", "--folder", "/dev/shm", "--cluster", "here.toml", "--update",
                     "--bytes", "1048576", "--rounds", "1"});
  EXPECT_EQ(outcome.code, 81) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("median")) << "the figures are shown";
  EXPECT_THAT(outcome.err, HasSubstr("here.toml is as it was: up to 100 % of what was read"));
  EXPECT_EQ(folder.read("here.toml"), kOne);
}

TEST(MachineBench, SaysWhatToDoAboutAFolder) {
  const Folder folder;
  // The system refuses to look at such a name, as it does below a folder that one may not enter.
  const Outcome hidden = bench(folder, {"storage", "--folder", std::string(300, 'a')});
  EXPECT_EQ(hidden.code, 66) << hidden.err;
  EXPECT_THAT(hidden.err, HasSubstr("cannot look at aaa"));
  EXPECT_THAT(hidden.err, HasSubstr("--folder"));
  const Outcome unwritable = bench(folder, {"storage", "--folder", "/proc"});
  EXPECT_EQ(unwritable.code, 74) << unwritable.err;
  EXPECT_THAT(unwritable.err, HasSubstr("fewer --bytes, or another place with --folder"));
}

/// What each rank of the fake trainer was given, without the name of the rendezvous, which must be
/// the same for all.
std::vector<std::string> given(const std::vector<std::string>& more, int code = 0) {
  const Folder folder;
  folder.write("costs.toml",
               "[tcp]\ninside_latency_s = 7\nbetween_latency_s = 8\ninside_bandwidth = "
               "1e9\nbetween_bandwidth = 1e9\n");
  std::vector<std::string> all{shoal_program(), "bench", "collectives"};
  all.insert(all.end(), more.begin(), more.end());
  const Outcome outcome = run(all, folder.path());
  EXPECT_EQ(outcome.code, code) << outcome.err;
  std::vector<std::string> list;
  std::set<std::string> names;
  for (int rank = 0; folder.has(fmt::format("bench-{}.txt", rank)); ++rank) {
    const std::string text = folder.read(fmt::format("bench-{}.txt", rank));
    const auto name = text.find(" name ");
    list.push_back(text.substr(0, name));
    names.insert(text.substr(name + 6));
  }
  EXPECT_EQ(names.size(), 1u);
  return list;
}

TEST(Bench, TellsEveryRankTheSame) {
  const std::string plain =
      "world 2 ops all_reduce bytes 4 to 268435456 factor 4 seconds 0.5 arena true tcp false hosts "
      "1 meet [] algorithms [] rails 0 tls auto routes natural latency 1.5e-05 type f32 json false "
      "cores 1";
  EXPECT_EQ(given({}), (std::vector<std::string>{plain, plain}));
  const std::string changed =
      "world 3 ops broadcast,barrier bytes 8 to 64 factor 3 seconds 0.25 arena false tcp true "
      "hosts 1 meet [] algorithms [all_reduce=ring] rails 5 tls on routes measured latency 7 type "
      "bf16 json true "
      "cores 1";
  EXPECT_EQ(given({"--nproc",
                   "3",
                   "--op",
                   "broadcast,barrier",
                   "--bytes",
                   "8:64",
                   "--factor",
                   "3",
                   "--seconds",
                   "0.25",
                   "--foreign",
                   "--transport",
                   "tcp",
                   "--algorithms",
                   "all_reduce=ring",
                   "--link-costs",
                   "costs.toml",
                   "--rails",
                   "5",
                   "--tls",
                   "on",
                   "--routes",
                   "measured",
                   "--type",
                   "bf16",
                   "--json"}),
            (std::vector<std::string>{changed, changed, changed}));
  const std::string hosts =
      "world 2 ops all_reduce bytes 4 to 4 factor 4 seconds 0.5 arena true tcp false hosts 2 meet "
      "[] algorithms [] rails 0 tls auto routes natural latency 1.5e-05 type f32 json false cores "
      "1";
  EXPECT_EQ(given({"--hosts", "2", "--bytes", "4"}), (std::vector<std::string>{hosts, hosts}));
  EXPECT_EQ(given({"--nproc", "1"}).size(), 1u);
}

TEST(Bench, AFailingRankFailsIt) {
  EXPECT_EQ(given({"--factor", "7", "--nproc", "3"}, 1).size(), 3u);
}

TEST(Bench, ARankThatIsStartedAloneStartsNoOther) {
  const Folder folder;
  const Outcome outcome = run({shoal_program(), "bench", "collectives", "--rank", "0",
                               "--rendezvous", "127.0.0.1:7", "--nproc", "3"},
                              folder.path());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(folder.read("bench-0.txt"), HasSubstr("meet [127.0.0.1:7]"));
  EXPECT_THAT(folder.read("bench-0.txt"), HasSubstr(" name bench\n"));
  EXPECT_FALSE(folder.has("bench-1.txt"));
}

TEST(Bench, RefusesWhatIsOutOfItsRange) {
  const Folder folder;
  const auto code = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{shoal_program(), "bench", "collectives"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all, folder.path());
  };
  for (const auto& words : std::vector<std::vector<std::string>>{{"--nproc", "0"},
                                                                 {"--nproc", "65"},
                                                                 {"--factor", "1"},
                                                                 {"--factor", "1025"},
                                                                 {"--hosts", "0"},
                                                                 {"--hosts", "65"},
                                                                 {"--seconds", "0"},
                                                                 {"--type", "f8"},
                                                                 {"--transport", "mpi"},
                                                                 {"--bytes", "3"}})
    EXPECT_EQ(code(words).code, 2) << words[0] << " " << words[1];
  folder.write("costs.toml",
               "[tcp]\ninside_latency_s = 7\nbetween_latency_s = 8\ninside_bandwidth = "
               "1e9\nbetween_bandwidth = 1e9\n");
  EXPECT_THAT(code({"--link-costs", "costs.toml"}).err, HasSubstr("--link-costs is of TCP"));
  EXPECT_THAT(code({"--transport", "tcp", "--hosts", "2"}).err,
              HasSubstr("--hosts: with --transport tcp no memory is shared"));
  EXPECT_THAT(code({"--rendezvous", "127.0.0.1:7"}).err, HasSubstr("go together"));
  // Two ranks are two hosts at most, and messages are between two.
  EXPECT_EQ(code({"--nproc", "2", "--hosts", "2", "--print-choice"}).code, 0);
  EXPECT_EQ(code({"--nproc", "2", "--op", "sendrecv", "--bytes", "4"}).code, 0);
}

}  // namespace
}  // namespace shoal::apps::testing::bench_test
