#include "apps/shoal/plan/collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/shoal/plan/commands.h"
#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"

namespace shoal::apps {
namespace {

using collective::Kind;

/// The most steps of a table: they take a few gigabytes.
constexpr double kMostSteps = 4e7;

struct CollectiveOptions {
  std::string algorithm = "ring";
  std::string straggler;
  int ranks = 2;
  int host_ranks = 0;
  double bytes = 1e9;
  double latency = 50e-6;
  double bandwidth = 1.25e9;
  bool json = false;
};

void validate(const CollectiveOptions& options, collective::Algorithm algorithm) {
  if (!(options.bytes >= 4) || options.bytes > 1e15)
    reject(fmt::format("--bytes {}: must lie between 4 and 1e15", options.bytes));
  if (!(options.latency >= 0) || options.latency > 1e6)
    reject(fmt::format("--latency {}: must not be negative", options.latency));
  if (!(options.bandwidth > 0) || options.bandwidth > 1e18)
    reject(fmt::format("--bandwidth {}: must be positive", options.bandwidth));
  const double ranks = options.ranks;
  const bool square = algorithm != collective::Algorithm::kRecursiveDoubling &&
                      algorithm != collective::Algorithm::kHalvingDoubling &&
                      algorithm != collective::Algorithm::kDoubleBinaryTree;
  // Before the table is made: 100,000 ranks in a ring would take 40 billion steps.
  if (square && 4 * ranks * ranks > kMostSteps) {
    reject(fmt::format("--ranks {}: {} has about ranks^2 steps; doubling and trees go further",
                       options.ranks, options.algorithm));
  }
}

void simulate(const CollectiveOptions& options) {
  const auto algorithm = collective::algorithm(options.algorithm);
  std::vector<std::string> known;
  for (const auto one : collective::algorithms_for(Kind::kAllReduce))
    known.emplace_back(collective::name(one));
  if (!algorithm || std::find(known.begin(), known.end(), options.algorithm) == known.end()) {
    reject(fmt::format("--algorithm {}: must be one of {}", options.algorithm,
                       fmt::join(known, ", ")));
  }
  validate(options, *algorithm);
  std::vector<int> hosts(static_cast<std::size_t>(options.ranks));
  for (int rank = 0; rank < options.ranks; ++rank)
    hosts[static_cast<std::size_t>(rank)] =
        options.host_ranks > 0 ? rank / options.host_ranks : rank;
  std::vector<double> slowdown(hosts.size(), 1);
  for (const plan::Straggler& one : stragglers_of(options.straggler)) {
    if (one.rank < 0 || one.rank >= options.ranks)
      reject(fmt::format("--straggler {}: there are {} ranks", one.rank, options.ranks));
    if (!(one.slowdown > 0) || !std::isfinite(one.slowdown))
      reject(fmt::format("--straggler {}:{}: the factor must be positive", one.rank, one.slowdown));
    slowdown[static_cast<std::size_t>(one.rank)] = one.slowdown;
  }
  // The table moves elements; those of gradients have 4 bytes.
  constexpr double kElement = 4;
  const auto table = collective::make_table(
      *algorithm, Kind::kAllReduce, static_cast<std::size_t>(options.bytes / kElement), 0, hosts);
  const auto ends = plan::simulate_collective(
      table, kElement, {options.latency, 1 / options.bandwidth, 0}, slowdown);
  const auto [first, last] = std::minmax_element(ends.begin(), ends.end());
  std::size_t steps = 0;
  for (const auto& rank : table) steps += rank.size();
  if (options.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"algorithm", options.algorithm},
                                              {"ranks", options.ranks},
                                              {"bytes", options.bytes},
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
      options.algorithm, options.bytes, options.ranks, steps, *first, last - ends.begin(), *last);
}

}  // namespace

std::vector<plan::Straggler> stragglers_of(const std::string& text) {
  std::vector<plan::Straggler> list;
  std::istringstream list_text(text);
  for (std::string word; std::getline(list_text, word, ',');) {
    plan::Straggler straggler;
    char rest = 0;
    long rank = 0;
    // A third conversion that succeeds means that something follows the factor.
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
      "collective", "Simulate the step table of an all-reduce over a link, with slower ranks");
  auto options = std::make_shared<CollectiveOptions>();
  command->option_defaults()->always_capture_default();
  command->add_option("--algorithm", options->algorithm,
                      "one_shot, direct, recursive_doubling, halving_doubling, ring, "
                      "double_binary_tree, hierarchical");
  command->add_option("--ranks", options->ranks, "Ranks")->required()->check(CLI::Range(1, 100000));
  command
      ->add_option("--host-ranks", options->host_ranks, "Hierarchical: ranks of each host; 0: one")
      ->check(CLI::Range(0, 100000));
  command->add_option("--bytes", options->bytes, "Bytes of the buffer, fp32");
  command->add_option("--latency", options->latency, "Seconds a message");
  command->add_option("--bandwidth", options->bandwidth, "Bytes a second");
  command->add_option("--straggler", options->straggler,
                      "Rank R slower by factor F: R:F; several: R:F,R:F");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { simulate(*options); });
}

}  // namespace shoal::apps
