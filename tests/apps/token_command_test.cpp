// `shoal token` as users and scripts call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "shoal/base/hex.h"
#include "shoal/wire/join_token.h"
#include "tests/apps/program.h"

namespace shoal::apps::testing::token_command_test {
namespace {

using ::testing::HasSubstr;

class TokenCommand : public ::testing::Test {
 protected:
  void SetUp() override { folder_.write("issuer", "a secret\n"); }
  Outcome shoal(std::vector<std::string> words) const {
    words.insert(words.begin(), {shoal_program(), "token"});
    return run(words, folder_.path());
  }
  Folder folder_;
};

TEST_F(TokenCommand, PrintsTheKeyThatReadsItsTokens) {
  EXPECT_EQ(shoal({"key", "issuer"}).out, hex(wire::token_key("a secret")) + "\n");
  const auto issue = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"issue", "issuer", "--cluster", "north"});
    std::string token = shoal(more).out;
    EXPECT_EQ(token.back(), '\n');
    token.pop_back();
    return token;
  };
  const auto before = wire::seconds_since_1970(std::chrono::system_clock::now());
  const auto reading_of = [](const std::string& token) {
    return wire::read_join_token(wire::token_key("a secret"), "north", token,
                                 std::chrono::system_clock::now());
  };
  const auto hour = reading_of(issue({}));
  EXPECT_EQ(hour.verdict, wire::TokenVerdict::kGood);
  EXPECT_GE(hour.expires_s, before + 3600);
  const auto week = reading_of(issue({"--good-for", "604800"}));
  EXPECT_EQ(week.verdict, wire::TokenVerdict::kGood);
  EXPECT_GE(week.expires_s, before + 604800);
  EXPECT_NE(week.nonce, hour.nonce);
}

TEST_F(TokenCommand, RefusesWhatMakesNoSense) {
  EXPECT_EQ(shoal({"issue", "issuer"}).code, 2) << "of which cluster?";
  EXPECT_EQ(shoal({"issue", "issuer", "--cluster", "north", "--good-for", "0"}).code, 2);
  EXPECT_EQ(shoal({}).code, 2);
  const Outcome missing = shoal({"key", "nowhere"});
  EXPECT_EQ(missing.code, 66);
  EXPECT_THAT(missing.err, HasSubstr("cannot read nowhere"));
  folder_.write("empty", "\n");
  const Outcome empty = shoal({"issue", "empty", "--cluster", "north"});
  EXPECT_EQ(empty.code, 78);
  EXPECT_THAT(empty.err, HasSubstr("head -c 32 /dev/urandom"));
  const Outcome long_name = shoal({"issue", "issuer", "--cluster", std::string(101, 'n')});
  EXPECT_EQ(long_name.code, 2);
  EXPECT_THAT(long_name.err, HasSubstr("at most 100 bytes"));
}

}  // namespace
}  // namespace shoal::apps::testing::token_command_test
