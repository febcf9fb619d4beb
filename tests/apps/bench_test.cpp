// What `shoal bench` does without any rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/apps/program.h"

namespace shoal::apps::testing::bench_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
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
