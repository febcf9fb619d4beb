// Ranks as threads that connect through a store and play several hosts: the transports of their
// groups, groups that only their members make, and the way of a failure to the other hosts.
#include "shoal/collective/fabric.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::fabric_test {
namespace {

using std::chrono::milliseconds;

/// Keys of one group among those of a store.
class Prefixed final : public wire::KeyValues {
 public:
  Prefixed(wire::KeyValues& store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    store_.set(prefix_ + key, value, deadline);
  }
  std::string wait(const std::string& key, Deadline deadline) override {
    return store_.wait(prefix_ + key, deadline);
  }
  std::string address() override { return store_.address(); }

 private:
  wire::KeyValues& store_;
  const std::string prefix_;
};

using Body = std::function<void(Fabric&, Communicator& all, wire::KeyValues& store)>;

/// Runs `body` on a thread for each of `hosts`, which names their hosts, and returns what each
/// threw.
std::vector<std::optional<Error>> on_fabric(const std::vector<int>& hosts, const Body& body,
                                            bool shares_memory = true,
                                            Duration timeout = std::chrono::seconds(60),
                                            const std::shared_ptr<FlightBook>& flight = nullptr,
                                            const std::vector<wire::TlsMode>& tls = {}) {
  static int meetings = 0;
  const std::string name = fmt::format("fabric-{}-{}", ::getpid(), ++meetings);
  return on_network(static_cast<int>(hosts.size()), [&](const wire::Endpoint& endpoint, int rank) {
    wire::StoreClient store(endpoint, "key", soon());
    const auto fabric = Fabric::on_hosts(
        {.name = name,
         .key = "key",
         .rank = rank,
         .size = static_cast<int>(hosts.size()),
         .shares_memory = shares_memory,
         .network = {.host = std::to_string(hosts[static_cast<std::size_t>(rank)]),
                     .tls =
                         tls.empty() ? wire::TlsMode::kAuto : tls[static_cast<std::size_t>(rank)]},
         .flight = flight,
         .timeout = timeout},
        store, [](int) { return nullptr; }, soon());
    const auto all = fabric->group_of_all();
    body(*fabric, *all, store);
    all->run({.kind = Kind::kBarrier}, soon());
    fabric->leave();
  });
}

std::string what(const Communicator& c) {
  if (dynamic_cast<const HostCommunicator*>(&c)) return "memory";
  if (dynamic_cast<const TcpCommunicator*>(&c)) return "connections";
  return "hierarchy";
}

void check_all(Communicator& c) {
  for (const Kind kind : kKinds) {
    for (const std::size_t count : {0, 1, 5001})
      EXPECT_EQ(check<float>(c, kind, ElementType::kF32, count, c.size() - 1), "") << what(c);
  }
}

struct Expected {
  std::vector<int> members;
  const char* what;
};

/// Makes each group, with the number of its members' fewest calls, and has it do everything.
void check_groups(Fabric& fabric, wire::KeyValues& store, const std::vector<Expected>& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& members = groups[i].members;
    const auto own = std::find(members.begin(), members.end(), fabric.options().rank);
    if (own == members.end()) continue;
    Prefixed own_keys(store, fmt::format("{}/", i));
    const auto group = fabric.group(members, own_keys, soon());
    EXPECT_EQ(what(*group), groups[i].what) << i;
    EXPECT_EQ(group->rank(), own - members.begin());
    EXPECT_EQ(group->size(), static_cast<int>(members.size()));
    check_all(*group);
    // Groups that split off have other numbers, and making the same group again makes another one.
    const auto half = group->split(group->rank() % 2, -group->rank());
    check_all(*half);
    Prefixed again(store, fmt::format("{}/again/", i));
    check_all(*fabric.group(members, again, soon()));
  }
}

TEST(Fabric, GroupsAreMadeByTheirMembersAlone) {
  expect_none(
      on_fabric({0, 0, 1, 1, 2}, [](Fabric& fabric, Communicator& all, wire::KeyValues& store) {
        EXPECT_EQ(what(all), "hierarchy");
        EXPECT_FALSE(fabric.in_one_memory());
        check_all(all);
        check_groups(fabric, store,
                     {{{0, 1}, "memory"},
                      {{3, 2}, "memory"},
                      {{0, 2}, "connections"},
                      {{4, 3, 0}, "connections"},
                      {{3, 1, 0}, "hierarchy"},
                      {{4, 0, 1, 2, 3}, "hierarchy"},
                      {{1}, "memory"},
                      {{4}, "memory"}});
      }));
}

TEST(Fabric, RanksThatShareNoMemoryUseTcp) {
  const std::vector<Expected> groups = {
      {{2, 0}, "connections"}, {{1}, "connections"}, {{1, 2, 0}, "connections"}};
  const auto body = [&](Fabric& fabric, Communicator& all, wire::KeyValues& store) {
    EXPECT_EQ(what(all), "connections");
    check_groups(fabric, store, groups);
  };
  expect_none(on_fabric({0, 1, 2}, body));
  expect_none(on_fabric({0, 0, 0}, body, false));
}

// Ranks that disagree show that the mode reaches their connections.
TEST(Fabric, ConnectionsRunTlsAsTheOptionsSay) {
  using wire::TlsMode;
  const auto with = [](const std::vector<int>& hosts, const std::vector<TlsMode>& tls) {
    const auto body = [](Fabric&, Communicator& all, wire::KeyValues&) { check_all(all); };
    return on_fabric(hosts, body, true, std::chrono::seconds(60), nullptr, tls);
  };
  testing::internal::CaptureStderr();
  expect_none(with({0, 0, 1}, {TlsMode::kOn, TlsMode::kOn, TlsMode::kOn}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  expect_none(with({0, 0, 1}, {TlsMode::kOff, TlsMode::kOff, TlsMode::kOff}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "shoal: tls is off: whoever is on the way between ranks can read and change what they "
            "send each other over TCP\n");
  // A third rank that comes when rank 0 has ended already would call it until the time of `soon` is
  // over.
  std::string all;
  for (const auto& error : with({0, 1}, {TlsMode::kOn, TlsMode::kAuto})) {
    ASSERT_TRUE(error);
    all += error->what();
  }
  // A rank that is about to connect may only see that another one ends.
  EXPECT_NE(all.find("has tls "), std::string::npos) << all;
}

TEST(Fabric, RanksOfOneHostNeedNoConnections) {
  for (const bool shares : {true, false}) {
    expect_none(on_fabric(
        {5},
        [](Fabric& fabric, Communicator& all, wire::KeyValues&) {
          EXPECT_TRUE(fabric.in_one_memory());
          check_all(all);
        },
        shares));
  }
  expect_none(on_fabric({5, 5, 5}, [](Fabric& fabric, Communicator& all, wire::KeyValues& store) {
    EXPECT_EQ(what(all), "memory");
    EXPECT_TRUE(fabric.in_one_memory());
    check_groups(fabric, store, {{{2, 0}, "memory"}, {{1}, "memory"}});
  }));
}

// A failure in the memory of one host is passed on to the other host with the ranks of the job, and
// the other way round.
TEST(Fabric, AFailureOfOneHostReachesAll) {
  for (const int where : {0, 1}) {
    const auto errors =
        on_fabric({0, 0, 1, 1}, [&](Fabric& fabric, Communicator&, wire::KeyValues& store) {
          const bool here = fabric.options().rank / 2 == where;
          Prefixed keys(store, fmt::format("{}/", fabric.options().rank / 2));
          const auto pair = fabric.group(here ? std::vector<int>{2 * where, 2 * where + 1}
                                              : std::vector<int>{2 - 2 * where, 3 - 2 * where},
                                         keys, soon());
          if (here) {
            try {
              std::vector<float> x(10);
              pair->run({.kind = Kind::kAllReduce,
                         .type = ElementType::kF32,
                         .buffer = {x.data(), x.data(), 5u + pair->rank()}},
                        soon());
            } catch (const Error& error) {
              fabric.propagate(error);
              throw Error(fabric.with_job_ranks(error));
            }
          }
          for (const Deadline end = soon(); !end.passed();) {
            fabric.check();
            pair->poll(milliseconds(1));
            std::this_thread::sleep_for(milliseconds(1));
          }
        });
    for (std::size_t r = 0; r < errors.size(); ++r) {
      ASSERT_TRUE(errors[r]) << r;
      EXPECT_EQ(errors[r]->kind(), ErrorKind::kMismatch) << errors[r]->what();
      EXPECT_NE(std::string(errors[r]->what())
                    .find(fmt::format("on the host of ranks {}, {}", 2 * where, 2 * where + 1)),
                std::string::npos)
          << errors[r]->what();
      EXPECT_EQ(errors[r]->size(), 4);
    }
  }
}

// The job's timeout is that of every group, whatever carries it: one rank never comes.
TEST(Fabric, TheTimeoutOfTheJobIsThatOfItsGroups) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0}, {0, 1}, {0, 0, 1}}) {
    std::atomic<int> over = 0;
    const auto errors = on_fabric(
        hosts,
        [&](Fabric&, Communicator& all, wire::KeyValues&) {
          if (all.rank() == 1) {
            for (const Deadline end = soon(); over == 0 && !end.passed();)
              std::this_thread::sleep_for(milliseconds(1));
            return;
          }
          try {
            all.wait(all.start({.kind = Kind::kBarrier}));
          } catch (const Error& error) {
            over = 1;
            throw;
          }
        },
        true, milliseconds(300));
    ASSERT_TRUE(errors[0]);
    EXPECT_EQ(errors[0]->kind(), ErrorKind::kTimeout) << errors[0]->what();
  }
}

// All groups of a job are in its book, whatever carries them.
TEST(Fabric, GroupsAreRecordedInTheBookOfTheJob) {
  const auto book = std::make_shared<FlightBook>();
  expect_none(on_fabric(
      {0, 0, 1}, [](Fabric&, Communicator&, wire::KeyValues&) {}, true, std::chrono::seconds(60),
      book));
  std::vector<std::string> names;
  for (const FlightPage& page : book->pages()) names.push_back(page.group);
  const auto count = [&](const char* prefix) {
    return std::count_if(names.begin(), names.end(),
                         [&](const std::string& name) { return name.starts_with(prefix); });
  };
  EXPECT_GE(count("tcp-1"), 1) << "of all ranks over TCP";
  EXPECT_GE(count("host-of-0-"), 2) << "on the first node, for both ways";
  EXPECT_GE(count("host-of-2-"), 1) << "on the second one";
}

TEST(Fabric, AGroupWithoutThisRankIsRefused) {
  expect_none(on_fabric({0, 1}, [](Fabric& fabric, Communicator& all, wire::KeyValues& store) {
    try {
      fabric.group({1 - all.rank()}, store, soon());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }));
}

}  // namespace
}  // namespace shoal::collective::fabric_test
