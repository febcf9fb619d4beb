// A group that asks for join tokens, over sockets: who is refused learns why, and a token that was
// used is refused by keepers that have no secret, when the member that has admitted its user is
// gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collective/elastic/elastic_group.h"
#include "tests/collective/elastic/some_carriers.h"
#include "tests/error_of.h"

namespace shoal::collective::elastic::admission_test {
namespace {

using std::chrono::hours;
using testing::HasSubstr;

std::string token(hours good_for = hours(1), const std::string& cluster = "shoal",
                  const std::string& secret = "of the issuer") {
  return wire::issue_join_token(secret, cluster, std::chrono::system_clock::now() + good_for);
}

LetterCarrier::Options with_token(const std::string& token,
                                  const membership::Settings& settings = patient()) {
  LetterCarrier::Options options = network(settings);
  options.token = token;
  return options;
}

/// A group of one member, which waits for those that have a token.
std::unique_ptr<LetterCarrier> founder(const membership::Settings& settings = patient()) {
  LetterCarrier::Options options = network(settings);
  options.admission = wire::token_key("of the issuer");
  auto carrier = LetterCarrier::found(options, Digest{});
  EXPECT_TRUE(view_of(*carrier, 1));
  return carrier;
}

Error refusal(const std::string& token, const LetterCarrier& contact) {
  return error_of([&] {
    ElasticGroup::Options options;
    options.network = with_token(token);
    ElasticGroup::join(std::move(options), {contact.endpoint()});
  });
}

TEST(ElasticAdmission, WhoIsRefusedLearnsWhyAndWhatToDo) {
  const auto member = founder();
  const Error none = refusal("", *member);
  EXPECT_EQ(none.kind(), ErrorKind::kMismatch);
  EXPECT_THAT(none.what(), HasSubstr("join with a token, and none is shown"));
  EXPECT_THAT(none.what(), HasSubstr("give it as `token`"));
  EXPECT_THAT(refusal(token(-hours(1)), *member).what(), HasSubstr("the join token is expired"));
  EXPECT_THAT(refusal(token(hours(1), "shoal", "mine"), *member).what(),
              HasSubstr("the join token is forged"));
  EXPECT_THAT(refusal(token(hours(1), "another"), *member).what(),
              HasSubstr("the join token is of another cluster: it is for \"another\""));
  // None of them has used anything up.
  const std::string good = token();
  const auto second = LetterCarrier::join(with_token(good), {member->endpoint()});
  ASSERT_TRUE(view_of(*second, 2));
  ASSERT_TRUE(view_of(*member, 2));
  const Error used = refusal(good, *member);
  EXPECT_THAT(used.what(), HasSubstr("the join token was used before: it has admitted a member"));
  EXPECT_THAT(used.what(), HasSubstr("have one issued for each start"));
}

TEST(ElasticAdmission, AUsedTokenStaysUsedWhenTheFounderIsGone) {
  std::vector<std::string> tokens;
  std::vector<std::unique_ptr<LetterCarrier>> members;
  members.push_back(founder(watchful()));
  while (members.size() < 3) {
    tokens.push_back(token());
    members.push_back(
        LetterCarrier::join(with_token(tokens.back(), watchful()), {members[0]->endpoint()}));
    for (const auto& member : members) ASSERT_TRUE(view_of(*member, members.size()));
  }
  // A step with all of them makes three keepers.
  for (const auto& member : members) {
    member->post(membership::StepReady{
        .epoch = member->status().view->epoch, .step = 0, .state = {}, .samples = 1});
  }
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 3));
  members.erase(members.begin());
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 2));
  for (const std::string& used : tokens)
    EXPECT_THAT(refusal(used, *members[1]).what(), HasSubstr("was used before"));
  const auto late = LetterCarrier::join(with_token(token(), watchful()), {members[1]->endpoint()});
  EXPECT_TRUE(view_of(*late, 3));
}

}  // namespace
}  // namespace shoal::collective::elastic::admission_test
