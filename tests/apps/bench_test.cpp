// What `shoal bench` does without any rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace shoal::apps::testing {
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
  EXPECT_THAT(words({"--rank", "1"}), HasSubstr("--rendezvous and --rank go together"));
}

}  // namespace
}  // namespace shoal::apps::testing
