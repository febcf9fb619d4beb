// The emulator against plain sockets: what they measure is what the links' specs say, and what they
// count is what the emulator counts. Bounds have the time in them that the emulator itself took.
#include "tests/emulation/wan.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/wire/address.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/error_of.h"

namespace shoal::emulation::wan_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::IsEmpty;

/// Of what is measured against a spec, where the time of the emulator itself is known.
constexpr double kShare = 0.03;

Deadline soon() { return Deadline::in(seconds(30)); }

/// Returns the time that a ping takes through links that take none.
Duration own_time(Wan& wan) { return median(ping(wan, 0, 1, 50)); }

std::vector<Duration> delays(Wan& wan, int from, int to, int count) {
  UdpPath path(wan, from, to);
  for (int i = 0; i < count; ++i) {
    path.send(100);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  wan.settle(soon());
  std::vector<Duration> found;
  for (const auto& arrival : path.take()) found.push_back(arrival.delay);
  return found;
}

double mean_seconds(const std::vector<Duration>& values) {
  double sum = 0;
  for (const Duration value : values) sum += to_seconds(value);
  return sum / static_cast<double>(values.size());
}

TEST(Wan, EachDirectionHasItsOwnDelay) {
  Wan wan(2);
  const Duration own = own_time(wan);
  wan.set(0, 1, {.delay = milliseconds(20)});
  wan.set(1, 0, {.delay = milliseconds(5)});
  wan.lateness();
  const auto round_trips = ping(wan, 0, 1, 50);
  const auto there = delays(wan, 0, 1, 50);
  const auto back = delays(wan, 1, 0, 50);
  const Duration slack = own + wan.lateness();
  const auto expect = [&](const std::vector<Duration>& found, Duration spec) {
    ASSERT_EQ(found.size(), 50u);
    EXPECT_GE(*std::min_element(found.begin(), found.end()), spec);
    EXPECT_LE(to_seconds(median(found)), to_seconds(spec) * (1 + kShare) + to_seconds(slack));
  };
  expect(round_trips, milliseconds(25));
  expect(there, milliseconds(20));
  expect(back, milliseconds(5));
  EXPECT_EQ(wan.dropped_by_devices(), 0u);
}

TEST(Wan, JitterIsUniformAndReordersOnlyWhereItMay) {
  Wan wan(2);
  const Duration own = own_time(wan);
  constexpr int kPackets = 400;
  for (const bool reorder : {true, false}) {
    wan.set(0, 1, {.delay = milliseconds(5), .jitter = milliseconds(20), .reorder = reorder});
    UdpPath path(wan, 0, 1);
    wan.lateness();
    for (int i = 0; i < kPackets; ++i) {
      path.send(100);
      std::this_thread::sleep_for(std::chrono::microseconds(250));
    }
    ASSERT_TRUE(wan.settle(soon()));
    const auto arrivals = path.take();
    ASSERT_EQ(arrivals.size(), static_cast<std::size_t>(kPackets));
    int overtaken = 0;
    std::vector<Duration> found;
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
      overtaken += i > 0 && arrivals[i].number < arrivals[i - 1].number ? 1 : 0;
      EXPECT_GE(arrivals[i].delay, milliseconds(5));
      found.push_back(arrivals[i].delay);
    }
    EXPECT_EQ(overtaken > 0, reorder);
    if (!reorder) continue;
    const double deviation = 0.02 / std::sqrt(12.0 * kPackets);
    EXPECT_GE(mean_seconds(found), 0.015 - 5 * deviation);
    EXPECT_LE(mean_seconds(found), 0.015 + 5 * deviation + to_seconds(own + wan.lateness()));
  }
}

struct Rates {
  std::vector<double> bits_per_second;  ///< by path, from the first arrival to the last of all
  Duration sending;                     ///< how long the sender took
};

/// Sends packets of 1000 bytes on all paths in turn.
Rates rates(Wan& wan, std::vector<UdpPath>& paths, int packets) {
  constexpr std::size_t kBytes = 1000;
  const auto begin = Clock::now();
  for (int i = 0; i < packets; ++i)
    for (UdpPath& path : paths) path.send(kBytes);
  Rates found{{}, Clock::now() - begin};
  EXPECT_TRUE(wan.settle(soon()));
  Duration first = Duration::max();
  Duration last = Duration::zero();
  for (UdpPath& path : paths) {
    const auto arrivals = path.take();
    EXPECT_EQ(arrivals.size(), static_cast<std::size_t>(packets));
    first = std::min(first, arrivals.front().at);
    last = std::max(last, arrivals.back().at);
    found.bits_per_second.push_back(static_cast<double>(arrivals.size() - 1) * kBytes * 8);
  }
  for (double& one : found.bits_per_second) one /= to_seconds(last - first);
  return found;
}

TEST(Wan, UdpGetsTheRateOfTheLinkAndOfItsConnection) {
  Wan wan(2);
  constexpr double kLink = 20e6;
  constexpr double kFlow = 8e6;
  constexpr int kPackets = 250;
  std::vector<UdpPath> paths;
  const auto expect = [&](const std::vector<double>& found, double rate, Duration sending) {
    // The first and the last packet may each be late, and while the sender was held up the link may
    // have had nothing to do.
    const double taken = kPackets * 8000.0 / rate;
    const double idle = to_seconds(2 * wan.lateness() + sending);
    for (const double one : found) EXPECT_NEAR(one, rate, rate * (0.01 + idle / taken));
  };
  paths.emplace_back(wan, 0, 1);
  wan.set(0, 1, {.bits_per_second = kLink});
  wan.lateness();
  const Rates alone = rates(wan, paths, kPackets);
  expect(alone.bits_per_second, kLink, alone.sending);

  wan.set(0, 1, {.bits_per_second = kLink, .flow_bits_per_second = kFlow});
  paths.emplace_back(wan, 0, 1);
  const Rates two = rates(wan, paths, kPackets);
  expect(two.bits_per_second, kFlow, two.sending);
  paths.emplace_back(wan, 0, 1);
  const Rates three = rates(wan, paths, kPackets);
  const auto& all = three.bits_per_second;
  expect({std::accumulate(all.begin(), all.end(), 0.0)}, kLink, three.sending);
}

TEST(Wan, TcpGetsTheRateOfTheLink) {
  Wan wan(2);
  constexpr double kLink = 20e6;
  wan.set_both(0, 1, {.delay = milliseconds(2), .bits_per_second = kLink});
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  // Of each packet 52 bytes are headers. A tenth: the two looks at the clock may each be late.
  constexpr double kGoodput = kLink * 1448 / 1500;
  EXPECT_EQ(when_quiet([&]() -> std::string {
              const double rate =
                  tcp_bits_per_second(wan, 0, 1, 1, milliseconds(300), milliseconds(600));
              if (std::abs(rate - kGoodput) <= 0.1 * kGoodput) return "";
              return fmt::format("{} bit/s of {}", rate, kGoodput);
            }),
            "");
}

TEST(Wan, AFullQueueDropsTheTail) {
  Wan wan(2);
  constexpr double kRate = 1e6;
  constexpr std::size_t kBytes = 1000;
  constexpr std::uint64_t kPackets = 100;
  constexpr std::uint64_t kFit = 10;
  wan.set(0, 1, {.bits_per_second = kRate, .queue_bytes = kFit * kBytes});
  UdpPath path(wan, 0, 1);
  const auto first = Clock::now();
  for (std::uint64_t i = 0; i < kPackets; ++i) path.send(kBytes);
  const Deadline end = soon();
  while (wan.between(0, 1).offered.packets < kPackets && !end.passed()) std::this_thread::yield();
  const double taken = to_seconds(Clock::now() - first);
  ASSERT_TRUE(wan.settle(soon()));
  const auto arrivals = path.take();
  // Those that fit, and one more for each that left while they came.
  const auto left = static_cast<std::uint64_t>(taken * kRate / 8 / kBytes);
  EXPECT_GE(arrivals.size(), kFit);
  EXPECT_LE(arrivals.size(), kFit + left + 1);
  for (std::size_t i = 0; i < kFit; ++i) EXPECT_EQ(arrivals[i].number, i);
  const Counters counters = wan.between(0, 1);
  const std::uint64_t dropped = kPackets - arrivals.size();
  EXPECT_EQ(counters.overflowed, (PacketCount{dropped, dropped * kBytes}));
}

TEST(Wan, LossesAreThoseOfTheSpecInItsDirection) {
  Wan wan(2);
  constexpr double kLoss = 0.03;
  constexpr int kPackets = 5000;
  wan.set(0, 1, {.loss = kLoss});
  UdpPath path(wan, 0, 1);
  UdpPath back(wan, 1, 0);
  for (int i = 0; i < kPackets; ++i) path.send(100);
  for (int i = 0; i < 500; ++i) back.send(100);
  ASSERT_TRUE(wan.settle(soon()));
  const auto lost = static_cast<double>(kPackets - path.take().size());
  EXPECT_NEAR(lost, kPackets * kLoss, 5 * std::sqrt(kPackets * kLoss * (1 - kLoss)));
  EXPECT_EQ(static_cast<double>(wan.between(0, 1).lost.packets), lost);
  EXPECT_EQ(back.take().size(), 500u);
  EXPECT_EQ(wan.dropped_by_devices(), 0u);
}

TEST(Wan, AOneWayCutStopsOneDirectionUntilItHeals) {
  Wan wan(3);
  UdpPath there(wan, 0, 1);
  UdpPath back(wan, 1, 0);
  UdpPath aside(wan, 0, 2);
  const auto arrive = [&] {
    for (UdpPath* path : {&there, &back, &aside}) path->send(100);
    EXPECT_TRUE(wan.settle(soon()));
    return std::array{there.take().size(), back.take().size(), aside.take().size()};
  };
  using Sizes = std::array<std::size_t, 3>;
  EXPECT_EQ(arrive(), (Sizes{1, 1, 1}));
  wan.set(0, 1, {.open = false});
  EXPECT_EQ(arrive(), (Sizes{0, 1, 1}));
  wan.heal();
  EXPECT_EQ(arrive(), (Sizes{1, 1, 1}));
  wan.cut({1});
  EXPECT_EQ(arrive(), (Sizes{0, 0, 1}));
  wan.cut({0, 1});
  wan.heal();
  EXPECT_EQ(arrive(), (Sizes{1, 1, 1}));
  EXPECT_EQ(wan.between(0, 1).cut, (PacketCount{2, 200}));
}

TEST(Wan, CountersAreWhatWasSent) {
  Wan wan(3);
  PacketCount sent[3][3];
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      UdpPath path(wan, from, to);
      for (int i = 0; i < 10 + 3 * from + to; ++i) {
        const std::size_t bytes = static_cast<std::size_t>(100 + 100 * from + 10 * to + i);
        path.send(bytes);
        sent[from][to].packets += 1;
        sent[from][to].bytes += bytes;
      }
      ASSERT_TRUE(wan.settle(soon()));
      const auto arrivals = path.take();
      ASSERT_EQ(arrivals.size(), sent[from][to].packets);
      EXPECT_EQ(arrivals.back().bytes, static_cast<std::size_t>(109 + 103 * from + 11 * to));
    }
  }
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      EXPECT_EQ(wan.between(from, to).offered, sent[from][to]) << from << " to " << to;
      EXPECT_EQ(wan.between(from, to).delivered, sent[from][to]) << from << " to " << to;
    }
  }
}

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::uint32_t state = 1;
  for (std::byte& one : data) {
    state = state * 1664525 + 1013904223;
    one = static_cast<std::byte>(state >> 24);
  }
  return data;
}

void make_blocking(int socket) { fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK); }

/// Sends `data` through a plain TCP connection and returns what arrives. Calls `meanwhile` when an
/// eighth of it has.
std::vector<std::byte> through_tcp(const Wan& wan, int from, int to,
                                   const std::vector<std::byte>& data,
                                   const std::function<void()>& meanwhile = {}) {
  const auto listener = wan.at(to, [&] { return wire::listen_on(wan.address(to), {0, 0}); });
  auto sent = std::async(std::launch::async, [&] {
    wan.enter(from);
    const auto socket = wire::connect_to(wire::local_endpoint(listener.get()), soon());
    make_blocking(socket.get());
    for (std::size_t at = 0; at < data.size();) {
      const ssize_t n = send(socket.get(), data.data() + at, data.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<std::size_t>(n);
    }
  });
  pollfd ready{listener.get(), POLLIN, 0};
  poll(&ready, 1, 30000);
  const wire::Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::vector<std::byte> received(data.size());
  std::size_t at = 0;
  bool told = false;
  while (at < data.size()) {
    const ssize_t n = recv(socket.get(), received.data() + at, data.size() - at, 0);
    if (n <= 0) break;
    at += static_cast<std::size_t>(n);
    if (told || !meanwhile || at < data.size() / 8) continue;
    told = true;
    meanwhile();
  }
  sent.get();
  received.resize(at);
  return received;
}

TEST(Wan, TcpGoesOnAfterACut) {
  Wan wan(2);
  wan.set_both(0, 1, {.delay = milliseconds(5), .bits_per_second = 50e6, .loss = 0.005});
  const auto data = pattern(2 << 20);
  const auto received = through_tcp(wan, 0, 1, data, [&] {
    wan.cut({0});
    // A sender that just waits for its timer sends nothing for a while.
    const Deadline end = soon();
    while (wan.between(0, 1).cut.packets == 0 && !end.passed())
      std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(200));
    wan.heal();
  });
  EXPECT_TRUE(received == data);
  EXPECT_GT(wan.between(0, 1).cut.packets, 0u);
  EXPECT_GT(wan.between(0, 1).lost.packets, 0u);
}

TEST(Wan, FastPacketsAreThoseOfALinkInTheSum) {
  Wan wan(2, {.packets = Wan::Packets::kFast});
  constexpr std::size_t kBytes = 32 << 20;
  wan.set_both(0, 1, {.delay = milliseconds(2), .bits_per_second = 500e6});
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  const std::uint64_t before = wan.between(0, 1).delivered.bytes;
  const std::uint64_t packets_before = wan.between(0, 1).delivered.packets;
  const auto data = pattern(kBytes);
  EXPECT_TRUE(through_tcp(wan, 0, 1, data) == data);
  ASSERT_TRUE(wan.settle(soon()));
  const Counters counters = wan.between(0, 1);
  const auto bytes = static_cast<double>(counters.delivered.bytes - before);
  const auto packets = static_cast<double>(counters.delivered.packets - packets_before);
  // Of a full packet of 1500 bytes, 52 are headers: the count of bytes has those of all packets.
  EXPECT_GE(bytes, kBytes + 52 * packets - 100);
  EXPECT_GE(packets, kBytes / 1448.0);
  EXPECT_LE(packets, 1.2 * kBytes / 1448.0);
  EXPECT_EQ(error_of([&] { wan.set(0, 1, {.loss = 0.01}); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([&] { wan.set(0, 1, {.queue_bytes = 1500}); }).kind(), ErrorKind::kUsage);
}

// A million packets a second are more than one thread can carry.
TEST(Wan, ARateThatTheEmulatorDoesNotReachIsVoid) {
  Wan wan(2);
  wan.set(0, 1, {.delay = milliseconds(1), .bits_per_second = 5e6});
  EXPECT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  wan.set(0, 1, {.bits_per_second = 100e9});
  EXPECT_THAT(why_void(wan, 0, 1), HasSubstr("void: from site 0 to 1 a raw socket gets"));
  EXPECT_EQ(wan.spec(0, 1).bits_per_second, 100e9);
}

TEST(Wan, RefusesLinksThatItHasNot) {
  Wan wan(2);
  for (const auto& [from, to] : {std::pair(0, 0), std::pair(0, 2), std::pair(-1, 0)}) {
    EXPECT_EQ(error_of([&, from = from, to = to] { wan.set(from, to, {}); }).kind(),
              ErrorKind::kUsage);
  }
  EXPECT_EQ(error_of([] { const Wan none(0); }).kind(), ErrorKind::kUsage);
}

/// Returns the names of sites that `process` has made, or that any has for -1.
std::vector<std::string> sites_of(pid_t process) {
  const std::string begin =
      process < 0 ? "shoal-wan-" : "shoal-wan-" + std::to_string(process) + "-";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/run/netns")) {
    const std::string name = entry.path().filename();
    if (name.starts_with(begin)) names.push_back(name);
  }
  return names;
}

std::size_t entries(const std::string& folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(Wan, LeavesNothingBehind) {
  const auto descriptors = entries("/proc/self/fd");
  const auto threads = entries("/proc/self/task");
  {
    Wan wan(3);
    EXPECT_EQ(sites_of(getpid()).size(), 3u);
    EXPECT_EQ(if_nametoindex("wan0"), 0u) << "the calling thread is in no site";
    wan.at(1, [] { EXPECT_NE(if_nametoindex("wan0"), 0u); });
  }
  EXPECT_THAT(sites_of(getpid()), IsEmpty());
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  const Deadline end = soon();
  while (entries("/proc/self/task") > threads && !end.passed())
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_LE(entries("/proc/self/task"), threads);
}

/// Starts a process that makes two sites and waits for its end.
pid_t process_with_sites() {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    try {
      const Wan wan(2);
      const char word = 1;
      if (write(ready[1], &word, 1) == 1) pause();
    } catch (const Error&) {
    }
    _exit(1);
  }
  close(ready[1]);
  char word = 0;
  EXPECT_EQ(read(ready[0], &word, 1), 1);
  close(ready[0]);
  return child;
}

void kill_and_wait(pid_t process) {
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

TEST(Wan, RemovesWhatKilledProcessesHaveLeft) {
  const pid_t killed = process_with_sites();
  const pid_t alive = process_with_sites();
  kill_and_wait(killed);
  EXPECT_EQ(sites_of(killed).size(), 2u);
  {
    const Wan wan(1);
    EXPECT_THAT(sites_of(killed), IsEmpty());
    EXPECT_EQ(sites_of(alive).size(), 2u);
  }
  kill_and_wait(alive);
  const Wan wan(1);
  EXPECT_THAT(sites_of(alive), IsEmpty());
}

}  // namespace
}  // namespace shoal::emulation::wan_test
