#include "apps/shoal/plan/collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"

namespace shoal::apps {
namespace {

using collective::Kind;

/// Steps of a table that fit in a few gigabytes.
constexpr double kMostSteps = 4e7;

struct Words {
  std::string algorithm = "ring";
  std::string straggler;
  int ranks = 2;
  int host_ranks = 0;
  double bytes = 1e9;
  double latency = 50e-6;
  double bandwidth = 1.25e9;
  bool json = false;
};

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kUsage, "plan", what); }

void validate(const Words& words, collective::Algorithm algorithm) {
  if (!(words.bytes >= 4) || words.bytes > 1e15)
    refuse(fmt::format("--bytes {}: must lie between 4 and 1e15", words.bytes));
  if (!(words.latency >= 0) || words.latency > 1e6)
    refuse(fmt::format("--latency {}: must not be negative", words.latency));
  if (!(words.bandwidth > 0) || words.bandwidth > 1e18)
    refuse(fmt::format("--bandwidth {}: must be positive", words.bandwidth));
  const double ranks = words.ranks;
  const bool square = algorithm != collective::Algorithm::kRecursiveDoubling &&
                      algorithm != collective::Algorithm::kHalvingDoubling &&
                      algorithm != collective::Algorithm::kDoubleBinaryTree;
  if (square && 4 * ranks * ranks > kMostSteps) {
    refuse(fmt::format("--ranks {}: {} has about ranks^2 steps; doubling and trees go further",
                       words.ranks, words.algorithm));
  }
}

void simulate(const Words& words) {
  const auto algorithm = collective::algorithm(words.algorithm);
  std::vector<std::string> known;
  for (const auto one : collective::algorithms_for(Kind::kAllReduce))
    known.emplace_back(collective::name(one));
  if (!algorithm || std::find(known.begin(), known.end(), words.algorithm) == known.end()) {
    refuse(
        fmt::format("--algorithm {}: must be one of {}", words.algorithm, fmt::join(known, ", ")));
  }
  validate(words, *algorithm);
  std::vector<int> hosts(static_cast<std::size_t>(words.ranks));
  for (int rank = 0; rank < words.ranks; ++rank)
    hosts[static_cast<std::size_t>(rank)] = words.host_ranks > 0 ? rank / words.host_ranks : rank;
  std::vector<double> slowdown(hosts.size(), 1);
  for (const plan::Straggler& one : stragglers_of(words.straggler)) {
    if (one.rank < 0 || one.rank >= words.ranks)
      refuse(fmt::format("--straggler {}: there are {} ranks", one.rank, words.ranks));
    if (!(one.slowdown > 0) || !std::isfinite(one.slowdown))
      refuse(fmt::format("--straggler {}:{}: the factor must be positive", one.rank, one.slowdown));
    slowdown[static_cast<std::size_t>(one.rank)] = one.slowdown;
  }
  constexpr double kElement = 4;
  const auto table = collective::make_table(
      *algorithm, Kind::kAllReduce, static_cast<std::size_t>(words.bytes / kElement), 0, hosts);
  const auto ends =
      plan::simulate_collective(table, kElement, {words.latency, 1 / words.bandwidth, 0}, slowdown);
  const auto [first, last] = std::minmax_element(ends.begin(), ends.end());
  std::size_t steps = 0;
  for (const auto& rank : table) steps += rank.size();
  if (words.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"algorithm", words.algorithm},
                                              {"ranks", words.ranks},
                                              {"bytes", words.bytes},
                                              {"steps", steps},
                                              {"first_done_s", *first},
                                              {"last_done_s", *last},
                                              {"last_rank", last - ends.begin()}}
                           .dump());
    return;
  }
  fmt::print(
      "{} of {:.4g} bytes over {} ranks, {} steps: the first rank is done after {:.4g} s, the "
      "last, {}, after {:.4g} s\n",
      words.algorithm, words.bytes, words.ranks, steps, *first, last - ends.begin(), *last);
}

}  // namespace

std::vector<plan::Straggler> stragglers_of(const std::string& text) {
  std::vector<plan::Straggler> list;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    plan::Straggler straggler;
    char rest = 0;
    long rank = 0;
    if (std::sscanf(word.c_str(), "%ld:%lf%c", &rank, &straggler.slowdown, &rest) != 2) {
      throw Error(ErrorKind::kUsage, "plan",
                  fmt::format("--straggler {}: must be rank:factor, as in 3:1.5", word));
    }
    straggler.rank = rank;
    list.push_back(straggler);
  }
  return list;
}

void add_collective_command(CLI::App& plan_command) {
  auto* command = plan_command.add_subcommand(
      "collective", "Carry out the step table of an all-reduce against a link, with slower ranks");
  auto words = std::make_shared<Words>();
  command->option_defaults()->always_capture_default();
  command->add_option("--algorithm", words->algorithm,
                      "one_shot, direct, recursive_doubling, halving_doubling, ring, "
                      "double_binary_tree, hierarchical");
  command->add_option("--ranks", words->ranks, "Ranks")->required()->check(CLI::Range(1, 100000));
  command->add_option("--host-ranks", words->host_ranks, "Hierarchical: ranks of each host; 0: one")
      ->check(CLI::Range(0, 100000));
  command->add_option("--bytes", words->bytes, "Bytes of the buffer, fp32");
  command->add_option("--latency", words->latency, "Seconds a message");
  command->add_option("--bandwidth", words->bandwidth, "Bytes a second");
  command->add_option("--straggler", words->straggler,
                      "Rank R slower by factor F: R:F; several: R:F,R:F");
  command->add_flag("--json", words->json, "One JSON object");
  command->callback([words] { simulate(*words); });
}

}  // namespace shoal::apps
