// A world that ends, in good order, by an error or because ranks are killed, leaves nothing behind:
// no descriptor, no thread, no mapped file, no file of a rendezvous, nothing in /dev/shm.
#include <dirent.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "shoal/wire/local_rendezvous.h"
#include "shoal/wire/rendezvous.h"
#include "tests/collective/host_ranks.h"
#include "tests/collective/on_hosts.h"

namespace shoal::collective::left_behind_test {
namespace {

using std::chrono::milliseconds;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const listing = opendir(folder.c_str());
  if (!listing) return names;
  while (const dirent* entry = readdir(listing))
    if (const std::string name = entry->d_name; name != "." && name != "..") names.push_back(name);
  closedir(listing);
  std::sort(names.begin(), names.end());
  return names;
}

/// Lists the kernel resources of this process, one a line: descriptors by their kind, mapped files
/// and segments, threads.
std::vector<std::string> held() {
  std::vector<std::string> lines;
  for (const std::string& name : names_in("/proc/self/fd")) {
    std::array<char, 256> target{};
    if (readlink(("/proc/self/fd/" + name).c_str(), target.data(), target.size() - 1) < 0)
      continue;  // that of the listing itself
    const std::string text = target.data();
    lines.push_back("descriptor of " + text.substr(0, text.find(":[")));
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    for (const char* kind : {"/memfd:", "/dev/shm/", "/tmp/"}) {
      if (const auto at = line.find(kind); at != std::string::npos)
        lines.push_back("mapping of " + line.substr(at));
    }
  }
  lines.insert(lines.end(), names_in("/proc/self/task").size(), "thread");
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// Returns the resources that appeared or vanished since `before`, waiting briefly for threads that
/// are still exiting. Fewer threads are no change: one may have been exiting when `before` was
/// read.
std::vector<std::string> changed_since(const std::vector<std::string>& before) {
  const Deadline end = Deadline::in(std::chrono::seconds(30));
  for (;; std::this_thread::sleep_for(milliseconds(5))) {
    const auto now = held();
    std::vector<std::string> changed;
    std::set_difference(before.begin(), before.end(), now.begin(), now.end(),
                        std::back_inserter(changed));
    std::erase(changed, "thread");
    for (std::string& line : changed) line += " no longer";
    std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                        std::back_inserter(changed));
    if (changed.empty() || end.passed()) return changed;
  }
}

/// Lists Shoal's files in the rendezvous directory and in /dev/shm.
std::vector<std::string> files_of(const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& file : names_in(wire::rendezvous_directory()))
    if (file.find(name) != std::string::npos) found.push_back(file);
  for (const std::string& file : names_in("/dev/shm")) {
    if (file.find("shoal") != std::string::npos || file.find(name) != std::string::npos)
      found.push_back("/dev/shm/" + file);
  }
  return found;
}

void all_reduce(Communicator& c, std::size_t count) {
  std::vector<float> x(count, 1);
  c.run(
      {.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {x.data(), x.data(), count}},
      soon());
}

constexpr std::size_t kManyElements = 300001;

void work(Communicator& c) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, kManyElements})
    all_reduce(c, count);
  if (const auto part = c.split(c.rank() % 2, 0)) all_reduce(*part, 1000);
  c.run({.kind = Kind::kBarrier}, soon());
}

/// The buffers of each rank when it fails: peers that are threads may still read them when the rank
/// has ended.
using Buffers = std::vector<std::vector<float>>;

/// Rank 1 gives up in the middle, with a large operation in flight on all ranks.
void fail_at_work(Communicator& c, Buffers& memory) {
  work(c);
  std::vector<float>& x = memory.at(static_cast<std::size_t>(c.rank()));
  const Handle handle = c.start({.kind = Kind::kAllReduce,
                                 .type = ElementType::kF32,
                                 .buffer = {x.data(), x.data(), x.size()}});
  if (c.rank() == 1)
    c.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, c.size()));
  c.wait(handle, soon());
  all_reduce(c, 1);
}

TEST(LeftBehind, NothingByRanksThatAreThreads) {
  Buffers memory(4, std::vector<float>(kManyElements, 1));
  const auto fail = [&](Communicator& c) { fail_at_work(c, memory); };
  const auto worlds = [&] {
    on_threads(3, [](HostCommunicator& c, int) { work(c); });
    EXPECT_THROW(on_threads(3, [&](HostCommunicator& c, int) { fail(c); }), Error);
    const auto network = [](const std::function<void(Communicator&)>& body) {
      return on_network(3, [&](const wire::Endpoint& store, int rank) {
        wire::StoreClient client(store, "key", soon());
        TcpCommunicator c(std::make_shared<wire::TcpTransport>(
                              wire::TcpTransport::Options{.key = "key"}, client, rank, 3, soon()),
                          {});
        body(c);
      });
    };
    expect_none(network(work));
    for (const auto& error : network(fail)) EXPECT_TRUE(error);
    expect_none(on_hosts({0, 0, 1, 1}, [](HierarchicalCommunicator& c) { work(c); }));
    for (const auto& error : on_hosts({0, 0, 1, 1}, [&](HierarchicalCommunicator& c) { fail(c); }))
      EXPECT_TRUE(error);
  };
  worlds();  // what libraries make once and keep is there
  const auto before = held();
  worlds();
  EXPECT_THAT(changed_since(before), ::testing::IsEmpty());
}

enum class Fate { kEnds, kFails, kOneIsKilled, kAllAreKilled };

/// One rank of a world over shared memory with an arena, or over TCP, from the rendezvous to the
/// end.
void live(const std::string& name, bool tcp, Fate fate, int rank, int ranks) {
  Buffers memory(static_cast<std::size_t>(ranks), std::vector<float>(kManyElements, 1));
  std::unique_ptr<wire::Arena> arena;
  std::unique_ptr<wire::Rendezvous> meeting;
  std::unique_ptr<Communicator> c;
  if (tcp) {
    const std::string place = fmt::format("file:{}/{}.store", wire::rendezvous_directory(), name);
    meeting = std::make_unique<wire::Rendezvous>(place, "key", rank, "127.0.0.1", soon());
    auto peers = std::make_shared<wire::TcpTransport>(wire::TcpTransport::Options{.key = "key"},
                                                      meeting->store(), rank, ranks, soon());
    meeting->all_ranks_connected();
    c = std::make_unique<TcpCommunicator>(std::move(peers), TcpCommunicator::Options{});
  } else {
    arena = std::make_unique<wire::Arena>(wire::Arena::Options{
        .virtual_bytes = std::size_t{1} << 30, .limit_bytes = std::size_t{1} << 28});
    const wire::LocalRendezvousOptions local{.name = name,
                                             .key = "key",
                                             .rank = rank,
                                             .size = ranks,
                                             .control_bytes = HostWorld::control_bytes(),
                                             .arena = &arena->segment()};
    c = std::make_unique<HostCommunicator>(
        std::make_shared<HostWorld>(rank, wire::local_rendezvous(local, soon()), &arena->segment()),
        HostCommunicator::Options{});
  }
  try {
    if (fate == Fate::kFails) fail_at_work(*c, memory);
    work(*c);
    if (fate == Fate::kAllAreKilled || (fate == Fate::kOneIsKilled && rank == 1)) {
      auto& x = memory[static_cast<std::size_t>(rank)];
      c->start({.kind = Kind::kAllReduce,
                .type = ElementType::kF32,
                .buffer = {x.data(), x.data(), kManyElements}});
      kill(getpid(), SIGKILL);
    }
    if (fate == Fate::kOneIsKilled)
      for (;;) all_reduce(*c, kManyElements);
  } catch (const Error& error) {
    if (fate == Fate::kAllAreKilled) kill(getpid(), SIGKILL);  // another was first
    const bool expected = (fate == Fate::kFails && error.kind() == ErrorKind::kData) ||
                          (fate == Fate::kOneIsKilled && error.kind() == ErrorKind::kPeerLost);
    if (!expected) throw;
  }
}

/// Runs it as a process: returns 0 when the process holds the same resources at the end as before.
int life(const std::string& name, bool tcp, Fate fate, int rank, int ranks) {
  try {
    live(name + "-first", tcp, Fate::kEnds, rank,
         ranks);  // what libraries make once and keep is there
    const auto before = held();
    live(name, tcp, fate, rank, ranks);
    const auto changed = changed_since(before);
    if (changed.empty()) return 0;
    fmt::print(stderr, "rank {} holds\n  {}\n", rank, fmt::join(changed, "\n  "));
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
  }
  return 1;
}

class LeftBehindByProcesses : public ::testing::TestWithParam<std::tuple<bool, Fate>> {};

TEST_P(LeftBehindByProcesses, Nothing) {
  constexpr int kRanks = 3;
  const auto [tcp, fate] = GetParam();
  const std::string name = fmt::format("left-{}-{}-{}", getpid(), tcp, static_cast<int>(fate));
  const auto before = held();
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(life(name, tcp, fate, rank, kRanks));
    children.push_back(child);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    const bool killed = fate == Fate::kAllAreKilled || (fate == Fate::kOneIsKilled && rank == 1);
    EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), killed ? SIGKILL : 0)
        << "rank " << rank;
  }
  EXPECT_THAT(changed_since(before), ::testing::IsEmpty());
  EXPECT_THAT(files_of(name), ::testing::IsEmpty());
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<bool, Fate>>& info) {
  const auto [tcp, fate] = info.param;
  static constexpr const char* kFates[] = {"ThatEnd", "ThatFail", "OfWhichOneIsKilled",
                                           "ThatAreKilled"};
  return std::string(tcp ? "OverTcp" : "OverSharedMemory") + kFates[static_cast<int>(fate)];
}

INSTANTIATE_TEST_SUITE_P(Fates, LeftBehindByProcesses,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Fate::kEnds, Fate::kFails,
                                                              Fate::kOneIsKilled,
                                                              Fate::kAllAreKilled)),
                         name_of);

}  // namespace
}  // namespace shoal::collective::left_behind_test
