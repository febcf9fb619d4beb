// Runs a command at each of two sites that a long link joins (tests/emulation/wan.h), and writes
// the bytes that the link has carried, headers included:
//
//   over_wan --megabits 100 --round-trip 50 --counts counts.txt -- sh -c 'RANK=$SITE ...'
//
// The command finds its site, 0 or 1, in SITE, its own address in SITE_OWN and that of site 0 in
// SITE_0. A line of the
// file of counts is the nanoseconds of CLOCK_MONOTONIC, the bytes that have come from site 0 to
// site 1 by then, and those in the other direction; there is one for every 10 ms in which packets
// came. Exits with 1 where a command failed, or the link was not what it should be. Needs the right
// to make network namespaces.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/emulation/wan.h"

namespace shoal::emulation {
namespace {

using std::chrono::milliseconds;

constexpr int kSites = 2;
constexpr Duration kWindow = milliseconds(10);
constexpr std::size_t kLeastQueue = std::size_t{1} << 20;

struct Choice {
  double megabits = 100;
  int round_trip_ms = 50;
  double timeout_s = 600;
  std::string counts;
  std::vector<std::string> command;
};

LinkSpec link_of(const Choice& choice) {
  const double rate = choice.megabits * 1e6;
  const auto round_trip = milliseconds(choice.round_trip_ms);
  // The queue holds what the link carries in a round trip, so that it drops little.
  const auto queue = static_cast<std::size_t>(rate / 8 * to_seconds(round_trip));
  return {.delay = round_trip / 2,
          .bits_per_second = rate,
          .queue_bytes = std::max(queue, kLeastQueue)};
}

/// Starts the command at a site. It ends with this process.
pid_t start(const Wan& wan, int site, const Choice& choice) {
  std::vector<char*> words;
  for (const std::string& word : choice.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const std::string number = fmt::format("{}", site);
  const std::string first = wan.address(0);
  const std::string own = wan.address(site);
  const pid_t process = fork();
  if (process != 0) return process;
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    wan.enter(site);
    setenv("SITE", number.c_str(), 1);
    setenv("SITE_0", first.c_str(), 1);
    setenv("SITE_OWN", own.c_str(), 1);
    execvp(words[0], words.data());
    fmt::print(stderr, "over_wan: cannot run {}\n", choice.command[0]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "over_wan: {}\n", error.what());
  }
  _exit(1);
}

/// The commands at their sites; whatever ends this object ends them.
class Commands {
 public:
  Commands(const Wan& wan, const Choice& choice) {
    for (int site = 0; site < kSites; ++site) processes_[site] = start(wan, site, choice);
  }
  ~Commands() {
    for (const pid_t process : processes_) {
      if (process <= 0) continue;
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
  }
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  /// Returns true when all have ended. Throws Error(resource) where one has failed.
  bool ended() {
    bool all = true;
    for (int site = 0; site < kSites; ++site) {
      pid_t& process = processes_[site];
      if (process == 0) continue;
      int status = 0;
      if (process < 0 || waitpid(process, &status, WNOHANG) == process) {
        process = 0;
        if (status == 0) continue;
        throw Error(ErrorKind::kResource, "over_wan",
                    fmt::format("the command at site {} failed with status {:#x}", site, status));
      }
      all = false;
    }
    return all;
  }

 private:
  std::array<pid_t, kSites> processes_{};
};

/// The bytes that have come through the link in each direction.
class CountsFile {
 public:
  explicit CountsFile(const std::string& path) : file_(path) {
    if (!file_) throw Error(ErrorKind::kOutput, "over_wan", fmt::format("cannot write {}", path));
  }
  void add(const Wan& wan) {
    const std::array<std::uint64_t, 2> bytes{wan.between(0, 1).delivered.bytes,
                                             wan.between(1, 0).delivered.bytes};
    if (bytes == last_) return;
    last_ = bytes;
    file_ << fmt::format("{} {} {}\n", Clock::now().time_since_epoch().count(), bytes[0], bytes[1]);
    file_.flush();
  }

 private:
  std::ofstream file_;
  std::array<std::uint64_t, 2> last_{};
};

void run(const Choice& choice) {
  Wan wan(kSites, {.packets = Wan::Packets::kFast});
  wan.set_all(link_of(choice));
  const std::string before = when_quiet([&] { return why_void(wan, 0, 1); });
  if (!before.empty()) throw Error(ErrorKind::kResource, "over_wan", before);
  wan.settle(Deadline::in(std::chrono::seconds(10)));
  CountsFile counts(choice.counts);
  counts.add(wan);
  Commands commands(wan, choice);
  const Deadline end = Deadline::in(from_seconds(choice.timeout_s));
  for (auto next = Clock::now() + kWindow; !commands.ended(); next += kWindow) {
    std::this_thread::sleep_until(next);
    counts.add(wan);
    if (end.passed()) {
      throw Error(ErrorKind::kTimeout, "over_wan",
                  fmt::format("the commands have not ended within {} s", choice.timeout_s));
    }
  }
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    const Counters counters = wan.between(from, to);
    fmt::print("over_wan: {} bytes from site {}, and {} that its full queue dropped\n",
               counters.delivered.bytes, from, counters.overflowed.bytes);
  }
  const std::uint64_t dropped = wan.dropped_by_devices();
  if (dropped == 0) return;
  throw Error(ErrorKind::kResource, "over_wan",
              fmt::format("the sites' devices dropped {} packets: the machine is too busy for this "
                          "link",
                          dropped));
}

}  // namespace
}  // namespace shoal::emulation

int main(int argc, char** argv) {
  shoal::emulation::Choice choice;
  CLI::App app("Runs a command at each of two sites that a long link joins.");
  app.add_option("--megabits", choice.megabits, "a second, of the link in each direction");
  app.add_option("--round-trip", choice.round_trip_ms, "in milliseconds");
  app.add_option("--timeout", choice.timeout_s, "seconds for the commands");
  app.add_option("--counts", choice.counts, "file of the bytes that the link carries")->required();
  app.add_option("command", choice.command, "behind --")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::emulation::run(choice);
  } catch (const std::exception& error) {
    fmt::print(stderr, "over_wan: {}\n", error.what());
    return 1;
  }
  return 0;
}
