// A group that asks for join tokens, over sockets: who is refused learns why, and a token that was
// used is refused by keepers that have no secret, when the member that has admitted its user is
// gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
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

std::size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// A member with a state that never changes, which makes steps until it is destroyed.
class TrainingMember {
 public:
  explicit TrainingMember(std::unique_ptr<ElasticGroup> group)
      : group_(std::move(group)), thread_([this] { train(); }) {}
  ~TrainingMember() {
    over_ = true;
    thread_.join();
  }
  TrainingMember(const TrainingMember&) = delete;
  TrainingMember& operator=(const TrainingMember&) = delete;

  static ElasticGroup::Options options(LetterCarrier::Options network) {
    ElasticGroup::Options options;
    options.network = std::move(network);
    options.state.write = [] { return std::vector<std::byte>(1); };
    options.state.read = [](std::span<const std::byte>) {};
    return options;
  }
  wire::Endpoint endpoint() const { return group_->endpoint(); }
  bool trained(std::uint64_t more) const {
    const std::uint64_t all = steps_ + more;
    for (const Deadline end = soon(); steps_ < all && !end.passed();)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return steps_ >= all;
  }

 private:
  void train() {
    try {
      while (!over_) {
        group_->step(
            group_->next_step(),
            [](const std::shared_ptr<Communicator>& all, const Roster&) {
              double sum = 1;
              all->wait(all->start({.kind = Kind::kAllReduce,
                                    .type = ElementType::kF64,
                                    .buffer = {&sum, &sum, 1}}));
              return Attempt{StateAccess::sha256(std::vector<std::byte>(1)), 1};
            },
            [this] { ++steps_; });
      }
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }

  std::unique_ptr<ElasticGroup> group_;
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Strangers with expired and used tokens call a group that trains. Each learns why it is refused;
// steps are committed meanwhile, by the same members; no connection and no thread is left of them.
TEST(ElasticAdmission, AGroupTrainsOnAndKeepsNothingOfThoseItRefuses) {
  LetterCarrier::Options network = with_token("");
  network.admission = wire::token_key("of the issuer");
  const TrainingMember member(ElasticGroup::found(TrainingMember::options(network)));
  const std::string used = token();
  {
    // It has joined, and leaves.
    const auto second =
        ElasticGroup::join(TrainingMember::options(with_token(used)), {member.endpoint()});
    EXPECT_EQ(second->view().members.size(), 2u);
    EXPECT_TRUE(second->leave());
  }
  EXPECT_TRUE(member.trained(2));
  const auto refused = [&](const std::string& shown) {
    return error_of([&] {
      ElasticGroup::join(TrainingMember::options(with_token(shown)), {member.endpoint()});
    });
  };
  EXPECT_THAT(refused(used).what(), HasSubstr("the join token was used before"));
  const std::size_t descriptors = entries_of("/proc/self/fd");
  const std::size_t threads = entries_of("/proc/self/task");
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(refused(used).what(), HasSubstr("the join token was used before"));
    EXPECT_THAT(refused(token(-hours(1))).what(), HasSubstr("the join token is expired"));
    EXPECT_TRUE(member.trained(1)) << "with the members that it has";
  }
  EXPECT_TRUE(member.trained(2));
  const auto is_back = [&] {
    return entries_of("/proc/self/fd") <= descriptors && entries_of("/proc/self/task") <= threads;
  };
  for (const Deadline end = soon(); !is_back() && !end.passed();)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_LE(entries_of("/proc/self/fd"), descriptors);
  EXPECT_LE(entries_of("/proc/self/task"), threads);
}

}  // namespace
}  // namespace shoal::collective::elastic::admission_test
