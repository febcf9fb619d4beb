// A communicator for each view, whose failure ends that view's work and nothing else.
#include "shoal/collective/elastic/view_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/hex.h"
#include "shoal/wire/address.h"
#include "tests/collective/elastic/some_carriers.h"

namespace shoal::collective::elastic::view_world_test {
namespace {

using Carriers = std::vector<std::unique_ptr<LetterCarrier>>;
using testing::ElementsAre;
using testing::HasSubstr;

/// Runs `body` on a thread for each member. Returns what each threw.
std::vector<std::optional<Error>> on_all(const Carriers& members,
                                         const std::function<void(LetterCarrier&)>& body) {
  std::vector<std::optional<Error>> errors(members.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(*members[i]);
      } catch (const Error& error) {
        errors[i] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<float> gathered_places(ViewWorld& world) {
  const auto own = static_cast<float>(world.rank());
  std::vector<float> all(world.view().members.size());
  world.group()->run({.kind = Kind::kAllGather,
                      .type = ElementType::kF32,
                      .buffer = {.input = &own, .output = all.data(), .count = 1}},
                     soon());
  return all;
}

float sum_of(ViewWorld& world, float value) {
  world.group()->run({.kind = Kind::kAllReduce,
                      .type = ElementType::kF32,
                      .buffer = {.input = &value, .output = &value, .count = 1}},
                     soon());
  return value;
}

std::unique_ptr<ViewWorld> world_of(LetterCarrier& member) {
  return std::make_unique<ViewWorld>(member, *member.status().view, ViewWorld::Options{}, soon());
}

TEST(ViewWorld, HasTheMembersOfTheViewAsRanks) {
  const Carriers members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  std::mutex mutex;
  const auto errors = on_all(members, [&](LetterCarrier& member) {
    const auto world = world_of(member);
    const auto places = gathered_places(*world);
    const std::lock_guard lock(mutex);
    EXPECT_THAT(places, ElementsAre(0, 1, 2));
    EXPECT_EQ(member.self(), world->view().members[static_cast<std::size_t>(world->rank())].id);
    EXPECT_FALSE(world->failure());
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

// All of 127.0.0.0/8 leads here: each member is at an address of its own, and listens on all.
TEST(ViewWorld, IsReachedWhereItsMembersSayThatTheyAre) {
  Carriers members;
  for (int i = 0; i < 2; ++i) {
    LetterCarrier::Options options = network();
    options.host = "0.0.0.0";
    const std::uint16_t port = wire::local_endpoint(wire::listen_on("0.0.0.0", {0, 0}).get()).port;
    options.ports = {port, static_cast<std::uint16_t>(port + 20)};
    options.advertise = i == 0 ? "127.0.0.5" : "127.0.0.6";
    members.push_back(i == 0 ? LetterCarrier::found(options, Digest{})
                             : LetterCarrier::join(options, members[0]->options().advertised));
    for (const auto& member : members) ASSERT_TRUE(view_of(*member, members.size()));
  }
  const auto errors = on_all(members, [](LetterCarrier& member) {
    const auto world = world_of(member);
    EXPECT_THAT(gathered_places(*world), ElementsAre(0, 1));
    const Digest view = membership::digest(world->view());
    const std::string key = "peers/" + hex(std::span(view).first<8>()) + "/0";
    EXPECT_THAT(member.told(view, key, std::chrono::seconds(1)).value_or("nothing"),
                testing::MatchesRegex("127.0.0.5:[0-9]+"));
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

/// The addresses of a column's ranks, which find each other through this.
class Addresses {
 public:
  explicit Addresses(int ranks) : addresses_(static_cast<std::size_t>(ranks)) {}
  std::vector<std::string> meet(int rank, const std::string& own) {
    std::unique_lock lock(mutex_);
    addresses_[static_cast<std::size_t>(rank)] = own;
    ++known_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return known_ == addresses_.size(); });
    return addresses_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> addresses_;
  std::size_t known_ = 0;
};

/// Runs three ranks of two columns; returns what each threw, by column and rank.
std::vector<std::string> on_columns(const std::function<Digest(int column)>& view_of_column,
                                    const std::function<void(ColumnWorld&, int rank)>& body,
                                    Duration longest = std::chrono::seconds(20)) {
  std::vector<std::string> errors(6);
  std::vector<std::unique_ptr<Addresses>> meetings;
  for (int column = 0; column < 2; ++column) meetings.push_back(std::make_unique<Addresses>(3));
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const int rank = i % 3;
      Addresses& meeting = *meetings[static_cast<std::size_t>(i / 3)];
      try {
        ColumnWorld world(
            network(), {},
            {.view = view_of_column(i), .column = 1 + i / 3, .rank = rank, .size = 3},
            [&](const std::string& own) { return meeting.meet(rank, own); }, [] {},
            Deadline::in(longest));
        body(world, rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(ColumnWorld, EachIsAGroupAndEndsByItself) {
  std::atomic<int> sums = 0;
  const auto errors =
      on_columns([](int) { return Digest{}; },
                 [&](ColumnWorld& world, int rank) {
                   auto value = static_cast<float>(rank + 1);
                   const auto add_up = [&] {
                     world.group()->run({.kind = Kind::kAllReduce,
                                         .type = ElementType::kF32,
                                         .buffer = {.input = &value, .output = &value, .count = 1}},
                                        soon());
                   };
                   add_up();
                   EXPECT_EQ(value, 6);
                   ++sums;
                   // Nobody is in the middle of the first sum any more.
                   while (rank == 1 && sums < 6)
                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                   if (rank == 1)
                     return world.abort(Error(ErrorKind::kAborted, "test", "the view is over"));
                   add_up();
                 });
  EXPECT_EQ(sums, 6);
  for (const int rank : {0, 2, 3, 5})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("the view is over"));
}

TEST(ColumnWorld, NobodyOfAnotherViewGetsIntoIt) {
  const auto view = [](int rank) {
    Digest digest{};
    digest[0] = rank == 5 ? std::byte{1} : std::byte{0};
    return digest;
  };
  std::atomic<int> connected = 0;
  const auto errors = on_columns(
      view, [&](ColumnWorld&, int) { ++connected; }, std::chrono::seconds(3));
  EXPECT_EQ(connected, 3) << "the first column";
  for (const int rank : {3, 4, 5}) EXPECT_NE(errors[static_cast<std::size_t>(rank)], "");
}

TEST(ViewWorld, OfOneMemberIsAGroupOfOne) {
  const Carriers members = carriers(1);
  EXPECT_EQ(sum_of(*world_of(*members[0]), 3), 3);
}

TEST(ViewWorld, EndsOnAllMembersWhereOneFailsAndLeavesTheNextOneAlone) {
  const Carriers members = carriers(3);
  ASSERT_EQ(members.size(), 3u);
  const auto errors = on_all(members, [&](LetterCarrier& member) {
    const auto world = world_of(member);
    sum_of(*world, 1);
    if (world->rank() == 1) {
      world->abort(Error(ErrorKind::kAborted, "test", "enough"));
    } else {
      sum_of(*world, 1);
    }
  });
  EXPECT_FALSE(errors[1]);
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(errors[static_cast<std::size_t>(rank)]);
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)]->what(), HasSubstr("enough"));
  }
  // The members are members as before, and the next view has a world of its own.
  const MemberStatus status = members[0]->status();
  for (const auto& member : members) {
    member->post(membership::StepFailed{
        .epoch = status.view->epoch, .step = status.place.step, .cause = "the world has failed"});
  }
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 3));
  const auto again =
      on_all(members, [&](LetterCarrier& member) { EXPECT_EQ(sum_of(*world_of(member), 2), 6); });
  for (const auto& error : again) EXPECT_FALSE(error) << error->what();
}

TEST(ViewWorld, EndsWhenAnotherViewBegins) {
  const Carriers members = carriers(2);
  ASSERT_EQ(members.size(), 2u);
  std::unique_ptr<LetterCarrier> third;
  const auto errors = on_all(members, [&](LetterCarrier& member) {
    const auto world = world_of(member);
    if (world->rank() == 1) {
      // It does not take part in the sum; a third one joins meanwhile.
      third = LetterCarrier::join(network(), {member.endpoint()});
      ASSERT_TRUE(view_of(member, 3));
    } else {
      sum_of(*world, 1);
    }
  });
  ASSERT_TRUE(errors[0]);
  EXPECT_EQ(errors[0]->kind(), ErrorKind::kAborted);
  EXPECT_FALSE(errors[1]);
}

TEST(ViewWorld, IsGivenUpByThoseThatWaitWhenAnotherViewBegins) {
  Carriers members = carriers(2);
  ASSERT_EQ(members.size(), 2u);
  const View view = *members[0]->status().view;
  std::optional<Error> error;
  // The other member never connects.
  std::thread waits([&] {
    try {
      ViewWorld(*members[0], view, ViewWorld::Options{}, soon());
    } catch (const Error& thrown) {
      error = thrown;
    }
  });
  members[1]->post(membership::LeaveAsked{});
  waits.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kAborted);
  EXPECT_THAT(error->what(), HasSubstr("the view is over"));
}

TEST(ViewWorld, NamesThoseThatDoNotComeInTime) {
  const Carriers members = carriers(2);
  ASSERT_EQ(members.size(), 2u);
  try {
    ViewWorld(*members[0], *members[0]->status().view, ViewWorld::Options{},
              Deadline::in(std::chrono::milliseconds(300)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("did not come: 1"));
  }
}

}  // namespace
}  // namespace shoal::collective::elastic::view_world_test
