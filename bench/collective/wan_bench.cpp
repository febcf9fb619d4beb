// All-reduce of two ranks that a long link joins (tests/emulation/wan.h), by the number of their
// connections, beside 64 plain TCP connections that fill the same link in both directions: megabits
// a second of payload in one direction. Two ranks each send as many bytes as the tensor has, both
// at a time. A case slow_rail has the link carry one of Shoal's connections at a tenth of its share
// and compares with itself without that. Needs the right to make network namespaces. bench/run.py
// says how this program is called; these words change what is measured:
//   --megabytes 128   of the tensor
//   --megabits 200    a second, of the link in each direction
//   --round-trip 100  in milliseconds
//   --rounds 3        of both sides, alternately
//   --raw 64          plain connections
// `--figure FILE.svg` measures more numbers of connections at three round trips, and draws them; it
// takes no names of cases and no --round-trip.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "bench/collective/rails_figure.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/emulation/wan.h"

namespace shoal::emulation {
namespace {

using collective::Kind;
using collective::TcpCommunicator;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array kRails{1, 8, 64};
constexpr std::array kWithSlowRail{8, 64};
constexpr std::array kRailsOfFigure{1, 2, 4, 8, 16, 32, 64};
constexpr std::array kRoundTripsOfFigure{20, 100, 300};
constexpr double kMega = 1e6;
constexpr std::size_t kMegabyte = 1000 * 1000;
constexpr std::size_t kWarmUpBytes = 64 * kMegabyte;

struct Settings {
  std::size_t megabytes = 128;
  double megabits = 200;
  int round_trip = 100;
  int rounds = 3;
  int raw = 64;
};

/// A measurement that bench/run.py calls by its name.
struct Case {
  std::string name;
  int rails = 1;
  bool slow_rail = false;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int rails : kRails)
    cases.push_back({fmt::format("wan/all_reduce/rails/{}", rails), rails, false});
  for (const int rails : kWithSlowRail)
    cases.push_back({fmt::format("wan/all_reduce/slow_rail/{}", rails), rails, true});
  return cases;
}

Deadline soon() { return Deadline::in(std::chrono::minutes(5)); }

/// The seconds that this process has computed, in all threads.
double computed() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

/// Runs a rank that all-reduces twice; rank 0 calls `between` before the second one. Returns the
/// bits that the second one sent a second.
double run_rank(const Wan& wan, const Settings& settings, int rails, int rank,
                const wire::Endpoint& store, const std::function<void()>& between) {
  wan.enter(rank);
  wire::StoreClient client(store, "key", soon());
  // The raw sockets beside it encrypt nothing either.
  const wire::TcpTransport::Options options{
      .key = "key", .rails = rails, .tls = wire::TlsMode::kOff};
  TcpCommunicator c(std::make_shared<wire::TcpTransport>(options, client, rank, 2, soon()), {});
  std::vector<float> x(settings.megabytes * kMegabyte / sizeof(float), 1);
  // The first one has the connections find out how much they may have on their way.
  const std::size_t warm = std::min(x.size(), kWarmUpBytes / sizeof(float));
  const auto all_reduce = [&](std::size_t count) {
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kF32,
           .buffer = {x.data(), x.data(), count}},
          soon());
  };
  all_reduce(warm);
  if (rank == 0 && between) between();
  c.run({.kind = Kind::kBarrier}, soon());
  const double cpu = computed();
  const auto begin = Clock::now();
  all_reduce(x.size());
  const double taken = to_seconds(Clock::now() - begin);
  if (rank == 0) {
    fmt::print(stderr, "  {} rails: {:.2f} s, {:.2f} cores busy\n", rails, taken,
               (computed() - cpu) / taken);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] != (i < warm ? 4 : 2))
      throw Error(ErrorKind::kInternal, "wan_bench", "a sum is wrong");
  }
  return static_cast<double>(x.size() * sizeof(float)) * 8 / taken;
}

double ours(const Wan& wan, const Settings& settings, int rails,
            const std::function<void()>& between = {}) {
  const auto store = wan.at(0, [&] {
    return std::make_unique<wire::StoreServer>(wan.address(0), wire::PortRange{}, "key");
  });
  const wire::Endpoint endpoint = store->endpoint();
  const auto run = [&](int rank) {
    return run_rank(wan, settings, rails, rank, endpoint, between);
  };
  auto second = std::async(std::launch::async, [&] { return run(1); });
  const double first = wan.at(0, [&] { return run(0); });
  return std::min(first, second.get());
}

double raw(const Wan& wan, const Settings& settings) {
  const double cpu = computed();
  const auto begin = Clock::now();
  const std::uint64_t bytes = settings.megabytes * kMegabyte;
  const double rate = tcp_bits_per_second_each_way(
      wan, 0, 1, settings.raw, std::min<std::uint64_t>(bytes, kWarmUpBytes), bytes);
  fmt::print(stderr, "  {} raw sockets: {:.1f} Mbit/s, {:.2f} cores busy\n", settings.raw,
             rate / kMega, (computed() - cpu) / to_seconds(Clock::now() - begin));
  return rate;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The queue holds what the link carries in a round trip, so that it drops little.
LinkSpec link_of(const Settings& settings) {
  const double rate = settings.megabits * kMega;
  const auto round_trip = milliseconds(settings.round_trip);
  const double queue = rate / 8 * to_seconds(round_trip);
  return {.delay = round_trip / 2,
          .bits_per_second = rate,
          .queue_bytes = std::max<std::size_t>(static_cast<std::size_t>(queue), 1 << 20)};
}

void check_link(Wan& wan) {
  if (const std::string why = why_void(wan, 0, 1); !why.empty())
    throw Error(ErrorKind::kResource, "wan_bench", why);
}

void measure(const Settings& settings, const Case& one) {
  const int rails = one.rails;
  Wan wan(2, {.packets = Wan::Packets::kFast});
  const LinkSpec spec = link_of(settings);
  wan.set_all(spec);
  check_link(wan);
  std::vector<double> us;
  std::vector<double> them;
  std::vector<double> ratios;
  for (int round = 0; round < settings.rounds; ++round) {
    wan.set_all(spec);
    if (one.slow_rail) {
      const double tenth = spec.bits_per_second / std::max(rails - 1, 1) / 10;
      us.push_back(ours(wan, settings, rails, [&] { wan.slow_down_one(0, 1, tenth); }) / kMega);
      wan.settle(Deadline::in(seconds(10)));
      wan.set_all(spec);
      them.push_back(ours(wan, settings, rails) / kMega);
    } else {
      us.push_back(ours(wan, settings, rails) / kMega);
      them.push_back(raw(wan, settings) / kMega);
    }
    ratios.push_back(us.back() / them.back());
    wan.settle(Deadline::in(seconds(10)));
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const double ratio = median_of(us) / median_of(them);
  fmt::print(
      "{{\"case\": \"{}\", \"unit\": \"Mbit/s\", \"ours\": {:.1f}, \"peer\": {:.1f}, \"ratio\": "
      "{:.3f}, \"spread\": {:.3f}, \"limit\": null}}\n",
      one.name, median_of(us), median_of(them), ratio, (*most - *least) / ratio);
  std::fflush(stdout);
}

/// Measures the curve of one round trip, the medians of its rounds.
RailCurve curve_of(const Settings& settings) {
  Wan wan(2, {.packets = Wan::Packets::kFast});
  wan.set_all(link_of(settings));
  check_link(wan);
  const auto median = [&](const std::function<double()>& one) {
    std::vector<double> rates;
    for (int round = 0; round < settings.rounds; ++round) {
      rates.push_back(one() / kMega);
      wan.settle(Deadline::in(seconds(10)));
    }
    return median_of(rates);
  };
  RailCurve curve{.round_trip_ms = settings.round_trip};
  for (const int rails : kRailsOfFigure)
    curve.by_rails.emplace_back(rails, median([&] { return ours(wan, settings, rails); }));
  curve.plain = median([&] { return raw(wan, settings); });
  return curve;
}

void draw(Settings settings, const std::string& path) {
  // Opened before minutes are spent on measuring. What is there stays until there is a new one.
  std::ofstream file(path, std::ios::app);
  if (!file) throw Error(ErrorKind::kOutput, "wan_bench", path + " cannot be written");
  file.close();
  std::vector<RailCurve> curves;
  for (const int round_trip : kRoundTripsOfFigure) {
    settings.round_trip = round_trip;
    curves.push_back(curve_of(settings));
    for (const auto& [rails, megabits] : curves.back().by_rails)
      fmt::print("{} ms, {} rails: {:.1f} Mbit/s\n", round_trip, rails, megabits);
    fmt::print("{} ms, {} plain: {:.1f} Mbit/s\n", round_trip, settings.raw, curves.back().plain);
    std::fflush(stdout);
  }
  const std::string title = fmt::format("All-reduce of {} MB between two ranks, link of {} Mbit/s",
                                        settings.megabytes, settings.megabits);
  file.open(path, std::ios::trunc);
  file << rails_figure(title, curves, settings.megabits, settings.raw);
  if (!file.flush()) throw Error(ErrorKind::kOutput, "wan_bench", path + " cannot be written");
}

struct Words {
  Settings settings;
  std::string figure;  ///< empty: none
  bool round_trip_given = false;
  std::vector<std::string> others;
};

/// Returns the number behind an option. Throws Error(usage) unless it lies between 1 and a billion.
double number_behind(const std::string& option, const char* text) {
  char* end = nullptr;
  constexpr double kMost = 1e9;
  const double value = text ? std::strtod(text, &end) : 0;
  const bool is_number = text && end != text && *end == '\0';
  if (!is_number || !(value >= 1 && value <= kMost)) {
    throw Error(
        ErrorKind::kUsage, "wan_bench",
        fmt::format("{} {}: must be a number from 1 to {:.0f}", option, text ? text : "", kMost));
  }
  return value;
}

Words read(int count, char** words) {
  Words read;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const char* next = i + 1 < count ? words[i + 1] : nullptr;
    const auto number = [&] { return number_behind(word, next); };
    if (word == "--megabytes") {
      read.settings.megabytes = static_cast<std::size_t>(number());
    } else if (word == "--megabits") {
      read.settings.megabits = number();
    } else if (word == "--round-trip") {
      read.settings.round_trip = static_cast<int>(number());
      read.round_trip_given = true;
    } else if (word == "--rounds") {
      read.settings.rounds = static_cast<int>(number());
    } else if (word == "--raw") {
      read.settings.raw = static_cast<int>(number());
    } else if (word == "--figure") {
      if (!next) throw Error(ErrorKind::kUsage, "wan_bench", "--figure: name the file");
      read.figure = next;
    } else {
      read.others.push_back(word);
      continue;
    }
    ++i;
  }
  return read;
}

/// Refuses what has no effect.
void check(const Words& words) {
  const std::vector<Case> cases = all_cases();
  for (const std::string& word : words.others) {
    const auto is_it = [&](const Case& one) { return one.name == word; };
    if (word == "--list" || std::any_of(cases.begin(), cases.end(), is_it)) continue;
    throw Error(ErrorKind::kUsage, "wan_bench",
                fmt::format("{}: neither a case nor an option; --list names the cases", word));
  }
  if (words.figure.empty()) return;
  if (words.round_trip_given) {
    throw Error(ErrorKind::kUsage, "wan_bench",
                "--round-trip means nothing beside --figure, which draws three of them");
  }
  if (!words.others.empty()) {
    throw Error(ErrorKind::kUsage, "wan_bench",
                fmt::format("{} means nothing beside --figure, which measures cases of its own",
                            words.others.front()));
  }
}

void run(const Words& words) {
  check(words);
  if (!words.figure.empty()) return draw(words.settings, words.figure);
  const auto is_asked = [&](const std::string& word) {
    return std::find(words.others.begin(), words.others.end(), word) != words.others.end();
  };
  for (const Case& one : all_cases()) {
    if (is_asked("--list")) fmt::print("{}\n", one.name);
    if (is_asked(one.name)) measure(words.settings, one);
  }
}

}  // namespace
}  // namespace shoal::emulation

int main(int count, char** words) {
  try {
    shoal::emulation::run(shoal::emulation::read(count, words));
  } catch (const std::exception& error) {
    fmt::print(stderr, "wan_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
