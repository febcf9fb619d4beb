#include "apps/shoal/slurm.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/base/number.h"
#include "shoal/base/philox.h"

namespace shoal::apps {
namespace {

using namespace std::chrono_literals;

/// A list that names more nodes is a mistake.
constexpr std::size_t kMostNodes = 100'000;
constexpr int kFirstPort = 20'000;
constexpr int kPorts = 10'000;
constexpr auto kRequeueLimit = 30s;

Error broken(std::string_view text, const std::string& why) {
  return Error(ErrorKind::kConfig, "launcher",
               fmt::format("Slurm's list \"{}\" is broken: {}", text, why));
}

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Splits at the commas that stand outside of brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> items;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || (text[at] == ',' && depth == 0)) {
      items.push_back(text.substr(begin, at - begin));
      begin = at + 1;
      continue;
    }
    depth += text[at] == '[' ? 1 : 0;
    depth -= text[at] == ']' ? 1 : 0;
  }
  return items;
}

/// The numbers between two brackets, with their leading zeros: "08-10,3" is 08, 09, 10, 3.
std::vector<std::string> numbers_of(std::string_view ranges, std::string_view list) {
  std::vector<std::string> numbers;
  for (const std::string_view range : split(ranges)) {
    const auto dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const auto low = is_digits(first) ? parse_number<std::int64_t>(first) : std::nullopt;
    const auto high = is_digits(last) ? parse_number<std::int64_t>(last) : std::nullopt;
    if (!low || !high || *high < *low)
      throw broken(list, fmt::format("\"{}\" is no number and no range", range));
    if (static_cast<std::size_t>(*high - *low) + numbers.size() >= kMostNodes)
      throw broken(list, fmt::format("it names more than {} nodes", kMostNodes));
    for (std::int64_t number = *low; number <= *high; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, first.size()));
  }
  return numbers;
}

/// The names of one item, such as "rack[1-2]n[01-04]".
std::vector<std::string> names_of(std::string_view item, std::string_view list) {
  if (item.empty()) throw broken(list, "a name is empty");
  std::vector<std::string> names = {""};
  for (std::size_t at = 0; at < item.size();) {
    const auto open = std::min(item.find('[', at), item.size());
    const std::string_view literal = item.substr(at, open - at);
    if (literal.find_first_of("] \t\n") != std::string_view::npos)
      throw broken(list, "a bracket is missing, or there is a blank");
    std::vector<std::string> parts = {""};
    at = item.size();
    if (open < item.size()) {
      const auto close = item.find(']', open);
      if (close == std::string_view::npos) throw broken(list, "a bracket is missing");
      parts = numbers_of(item.substr(open + 1, close - open - 1), list);
      at = close + 1;
    }
    if (names.size() * parts.size() > kMostNodes)
      throw broken(list, fmt::format("it names more than {} nodes", kMostNodes));
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const std::string& part : parts) longer.push_back(name + std::string(literal) + part);
    names = std::move(longer);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text) {
  std::vector<std::string> nodes;
  for (const std::string_view item : split(text)) {
    const auto names = names_of(item, text);
    if (nodes.size() + names.size() > kMostNodes)
      throw broken(text, fmt::format("it names more than {} nodes", kMostNodes));
    nodes.insert(nodes.end(), names.begin(), names.end());
  }
  return nodes;
}

std::optional<int> tasks_on_node(std::string_view text, int node) {
  int first = 0;
  for (std::string_view item : split(text)) {
    int nodes = 1;
    if (const auto open = item.find("(x"); open != std::string_view::npos && item.back() == ')') {
      nodes = parse_number<int>(item.substr(open + 2, item.size() - open - 3)).value_or(0);
      item = item.substr(0, open);
    }
    const auto tasks = is_digits(item) ? parse_number<int>(item) : std::nullopt;
    if (!tasks || nodes < 1) break;
    if (node - first < nodes) return tasks;
    first += nodes;  // at most `node`
  }
  return std::nullopt;
}

int slurm_port(const std::string& job, const std::string& step) {
  const std::uint64_t hash = Key(0).child("slurm port").child(job + "." + step).value();
  return kFirstPort + static_cast<int>(hash % kPorts);
}

void requeue_slurm_job(const std::string& job) {
  std::string program = "scontrol";
  std::string verb = "requeue";
  std::string id = job;
  char* const words[] = {program.data(), verb.data(), id.data(), nullptr};
  // Slurm ends the step while it carries the request out: whatever is printed later may be lost.
  fmt::print("Slurm is asked to start job {} again.\n", job);
  std::fflush(stdout);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, "scontrol", nullptr, nullptr, words, environ);
  std::string why = error != 0 ? std::strerror(error) : "";
  if (error == 0) {
    int status = 0;
    pid_t ended = 0;
    const auto limit = std::chrono::steady_clock::now() + kRequeueLimit;
    while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 &&
           std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(10ms);
    if (ended == 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      why = "no answer in 30 s";
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      why = fmt::format("it ended with code {}",
                        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
  }
  if (!why.empty()) {
    fmt::print(stderr, "shoal: `scontrol requeue {}` failed: {}. The same command goes on.\n", job,
               why);
  }
}

}  // namespace shoal::apps
