// Members that agree over real sockets, and what a carrier does with connections and strangers.
#include "shoal/collective/elastic/letter_carrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collective/membership/fields.h"
#include "tests/collective/elastic/some_carriers.h"

namespace shoal::collective::elastic::letter_carrier_test {
namespace {

using membership::Outcome;
using testing::HasSubstr;

Digest digest_of(int value) {
  Digest digest{};
  digest.fill(static_cast<std::byte>(value));
  return digest;
}

/// All attempt a step with success. Returns false where it is not committed on all.
bool commit(const std::vector<std::unique_ptr<LetterCarrier>>& members, std::uint64_t step) {
  const Digest state = digest_of(static_cast<int>(step) + 1);
  for (const auto& member : members) {
    const MemberStatus status = member->status();
    member->post(membership::StepReady{
        .epoch = status.view->epoch, .step = step, .state = state, .samples = 10});
  }
  for (const auto& member : members) {
    const auto outcome = next_outcome(*member);
    if (!outcome || outcome->kind != Outcome::Kind::kCommit || outcome->state != state ||
        outcome->step != step)
      return false;
  }
  return true;
}

TEST(LetterCarrier, FoundsAGroupAloneAndCommitsItsSteps) {
  const auto alone = carriers(1);
  ASSERT_EQ(alone.size(), 1u);
  ASSERT_TRUE(view_of(*alone[0], 1));
  EXPECT_TRUE(commit(alone, 0));
  EXPECT_TRUE(commit(alone, 1));
  EXPECT_EQ(alone[0]->status().place.samples, 20u);
}

TEST(LetterCarrier, BringsMembersIntoOneView) {
  const auto members = carriers(4);
  ASSERT_EQ(members.size(), 4u);
  const View view = *members[0]->status().view;
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(*members[i]->status().view, view);
    EXPECT_EQ(view.members[i].id, members[i]->self());
    EXPECT_EQ(view.members[i].endpoints, std::vector{members[i]->endpoint()});
  }
  ASSERT_TRUE(commit(members, 0));
  // Now that a step is committed with them, three may be keepers.
  for (const auto& member : members) {
    const auto next = view_of(*member, 4);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->keepers.size(), 3u);
    EXPECT_EQ(next->first_step, 1u);
  }
}

TEST(LetterCarrier, KeepsAllMembersWhereConnectionsAreLost) {
  const auto members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  ASSERT_TRUE(commit(members, 0));
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 3));
  const std::uint64_t epoch = members[0]->status().view->epoch;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    members[step % 3]->disconnect_all();
    ASSERT_TRUE(commit(members, step)) << "step " << step;
  }
  for (const auto& member : members) EXPECT_EQ(member->status().view->epoch, epoch);
  EXPECT_GT(members[0]->counts().lost, 3u);
}

TEST(LetterCarrier, RemovesAMemberThatIsSilent) {
  auto members = carriers(3, network(watchful()));
  ASSERT_EQ(members.size(), 3u);
  ASSERT_TRUE(commit(members, 0));
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 3));
  const MemberId gone = members[0]->self();  // the owner
  members.erase(members.begin());
  for (const auto& member : members) {
    const auto view = view_of(*member, 2);
    ASSERT_TRUE(view);
    EXPECT_FALSE(view->has(gone));
  }
  EXPECT_TRUE(commit(members, 1));
}

TEST(LetterCarrier, LetsAMemberLeaveInOrder) {
  auto members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  for (const std::size_t leaver : {1u, 0u}) {
    members[leaver]->post(membership::LeaveAsked{});
    EXPECT_TRUE(members[leaver]->wait_for_end(soon()));
    EXPECT_TRUE(members[leaver]->status().left);
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(leaver));
    for (const auto& member : members) ASSERT_TRUE(view_of(*member, members.size()));
  }
  EXPECT_TRUE(commit(members, 0));
}

TEST(LetterCarrier, JoinsThroughAnyMemberAndPastContactsThatAreDead) {
  auto members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  const wire::Endpoint dead = wire::local_endpoint(wire::listen_on("127.0.0.1", {}).get());
  // The last member keeps nothing: it sends the joiner to the keeper.
  ASSERT_FALSE(members[2]->status().view->is_kept_by(members[2]->self()));
  members.push_back(LetterCarrier::join(network(), {dead, members[2]->endpoint()}));
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 4));
}

TEST(LetterCarrier, JoinsAGroupThatBeginsLater) {
  wire::Descriptor reserved = wire::listen_on("127.0.0.1", {});
  LetterCarrier::Options options = network();
  const std::uint16_t port = wire::local_endpoint(reserved.get()).port;
  reserved = wire::Descriptor();
  const auto joiner = LetterCarrier::join(network(), {{"localhost", port}});
  EXPECT_FALSE(joiner->take_news(Deadline::in(std::chrono::milliseconds(300))));
  options.ports = {port, port};
  const auto founder = LetterCarrier::found(options, Digest{});
  ASSERT_TRUE(view_of(*founder, 1));
  EXPECT_TRUE(view_of(*joiner, 2));
}

TEST(LetterCarrier, RefusesAJoinerOfAnotherWidth) {
  const auto members = carriers(1);
  LetterCarrier::Options options = network();
  options.width = 2;
  const auto joiner = LetterCarrier::join(options, {members[0]->endpoint()});
  ASSERT_TRUE(joiner->wait_for_end(soon()));
  ASSERT_TRUE(joiner->status().ended);
  EXPECT_THAT(joiner->status().ended->what(), HasSubstr("2 ranks"));
  EXPECT_FALSE(joiner->take_news(soon()));
}

TEST(LetterCarrier, TellsTheMembersOfAViewTexts) {
  auto members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  const Digest view = membership::digest(*members[0]->status().view);
  for (std::size_t i = 0; i < members.size(); ++i)
    members[i]->tell(view, "key " + std::to_string(i), "value " + std::to_string(i));
  for (const auto& member : members) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      EXPECT_EQ(member->told(view, "key " + std::to_string(i), std::chrono::minutes(1)),
                "value " + std::to_string(i));
    }
  }
  EXPECT_FALSE(members[0]->told(view, "nobody's", std::chrono::milliseconds(10)));
  // Whoever waits learns that the view is over.
  bool over = false;
  members[1]->when_over(view, [&](const Error&) { over = true; });
  members[2]->post(membership::LeaveAsked{});
  EXPECT_THROW(members[0]->told(view, "nobody's", std::chrono::minutes(1)), Error);
  ASSERT_TRUE(view_of(*members[1], 2));
  EXPECT_TRUE(over);
  EXPECT_THROW(members[1]->check_view(view), Error);
  EXPECT_THROW(members[0]->told(view, "key 1", std::chrono::minutes(1)), Error);
}

/// Somebody with the key who keeps to none of the rules above it.
class Liar {
 public:
  explicit Liar(const LetterCarrier& to, const std::string& key = "the cluster's key",
                const std::string& cluster = "shoal")
      : to_(to.self()),
        links_(loop_, wire::listen_on("127.0.0.1", {}),
               {.key = key,
                .cluster = cluster,
                .self = identity_.id(),
                .context = std::make_shared<const wire::TlsContext>(identity_),
                .received = [](const MemberId&, std::uint64_t, const wire::Bytes&) {}}) {
    links_.know(to_, {to.endpoint()});
  }
  const MemberId& id() const { return identity_.id(); }
  /// Returns false where the other side has not closed the connection for it.
  bool is_disconnected_for(std::uint64_t kind, const wire::Bytes& message) {
    const std::uint64_t before = links_.counts().lost + links_.counts().calls_failed;
    links_.send(to_, kind, message);
    for (const Deadline end = soon(); !end.passed();) {
      loop_.run_once(std::chrono::milliseconds(1));
      links_.tick(Clock::now());
      if (links_.counts().lost + links_.counts().calls_failed > before) return true;
    }
    return false;
  }

 private:
  wire::Identity identity_;
  MemberId to_;
  wire::EventLoop loop_;
  wire::PeerLinks links_;
};

TEST(LetterCarrier, GoesOnWhateverStrangersSend) {
  const auto members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  EXPECT_TRUE(Liar(*members[0], "another key").is_disconnected_for(1, {}));
  EXPECT_TRUE(Liar(*members[0], "the cluster's key", "another").is_disconnected_for(1, {}));
  const wire::Descriptor noise = wire::connect_to(members[0]->endpoint(), soon());
  const std::string rubbish(500, 'x');
  ::send(noise.get(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL);

  Liar liar(*members[0]);
  EXPECT_TRUE(liar.is_disconnected_for(1, {}));                         // an empty letter
  EXPECT_TRUE(liar.is_disconnected_for(1, wire::Bytes(1000)));          // no letter
  EXPECT_TRUE(liar.is_disconnected_for(2, wire::Bytes(10)));            // no text
  EXPECT_TRUE(liar.is_disconnected_for(3, wire::Bytes(1)));             // no question
  EXPECT_TRUE(liar.is_disconnected_for(4, wire::Bytes(32)));            // nothing known
  EXPECT_TRUE(liar.is_disconnected_for(kStateKind, wire::Bytes(5)));    // half a message
  EXPECT_TRUE(liar.is_disconnected_for(kStateKind, wire::Bytes(100)));  // a question, and no wish
  EXPECT_TRUE(liar.is_disconnected_for(kStateKind, wire::Bytes(33, std::byte{9})));  // no kind
  const MemberStatus status = members[0]->status();
  const auto letter = [&](const MemberId& from, const MemberId& to, membership::Body body) {
    return membership::encode({.from = from,
                               .to = to,
                               .lineage = status.view->lineage,
                               .epoch = status.view->epoch,
                               .body = std::move(body)});
  };
  // In the name of another member, and for another one.
  const membership::Beat beat{.place = status.place, .accused = {members[2]->self()}};
  EXPECT_TRUE(liar.is_disconnected_for(1, letter(members[1]->self(), members[0]->self(), beat)));
  EXPECT_TRUE(liar.is_disconnected_for(1, letter(liar.id(), members[1]->self(), beat)));
  const membership::Join join{.who = {.id = members[1]->self()}, .ready = true};
  EXPECT_TRUE(liar.is_disconnected_for(1, letter(liar.id(), members[0]->self(), join)));
  // It asks for the state with the wish of another one.
  wire::Bytes question(33);
  const wire::Bytes wish = letter(members[1]->self(), members[0]->self(), join);
  question.insert(question.end(), wish.begin(), wish.end());
  EXPECT_TRUE(liar.is_disconnected_for(kStateKind, question));
  EXPECT_TRUE(commit(members, 0));
  EXPECT_GE(members[0]->counts().refused, 12u);
}

}  // namespace
}  // namespace shoal::collective::elastic::letter_carrier_test
