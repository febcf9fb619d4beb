#include "apps/shoal/watch/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "apps/shoal/flight_answers.h"
#include "shoal/base/figures.h"
#include "shoal/base/file.h"
#include "shoal/collective/flight/flight_files.h"

namespace shoal::apps {
namespace {

/// Verdicts by group: "#412 all_reduce of 5 x f32 by sum: rank 2 never entered it ...".
std::map<std::string, std::string> verdicts_of(const std::string& flights) {
  std::map<std::string, std::string> verdicts;
  std::istringstream lines(flights);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("record", "") == "verdict")
      verdicts[json.value("group", "")] = json.value("text", "");
  }
  return verdicts;
}

/// Steps of all ranks that are known here.
std::int64_t sum_of_steps(const JobStatus& status) {
  std::int64_t sum = 0;
  for (const RankStatus& rank : status.ranks) sum += rank.step;
  return sum;
}

void find_stopped_ranks(const JobStatus& status, Diagnosis& found) {
  for (const RankStatus& rank : status.ranks) {
    const std::size_t ranks = status.ranks.size();
    if (rank.state == ProcessState::kStopped) {
      found.lines.push_back(fmt::format(
          "rank {} of {} stands still: a signal has stopped it (kill -CONT {} lets it go on)",
          rank.rank, ranks, rank.process));
    }
    if (rank.state == ProcessState::kEnded)
      found.lines.push_back(fmt::format("rank {} of {} has ended", rank.rank, ranks));
  }
  found.stands_still = !found.lines.empty();
}

void find_waiting_ranks(const JobLook& before, const JobLook& after, Diagnosis& found) {
  const auto earlier = verdicts_of(before.flights);
  // Several groups may have the same to say, as those of all ranks and of the axes of a mesh do.
  std::vector<std::string> said;
  for (const auto& [group, text] : verdicts_of(after.flights)) {
    const auto known = earlier.find(group);
    // In another operation than a second before: this group goes on.
    if (known == earlier.end() || known->second != text) continue;
    if (std::find(said.begin(), said.end(), text) != said.end()) continue;
    said.push_back(text);
    found.lines.push_back("waiting in " + text);
  }
  found.stands_still |= !said.empty();
}

void find_lagging_ranks(const JobStatus& status, Diagnosis& found) {
  std::int64_t furthest = 0;
  for (const RankStatus& rank : status.ranks) furthest = std::max(furthest, rank.step);
  for (const RankStatus& rank : status.ranks) {
    if (rank.process == 0 || rank.step == furthest) continue;
    found.lines.push_back(fmt::format("rank {} of {} is in step {}, the furthest rank in step {}",
                                      rank.rank, status.ranks.size(), rank.step, furthest));
  }
}

std::string describe_progress(const JobLook& before, const JobLook& after, double apart_s) {
  const RankStatus& first = after.status.ranks.at(0);
  if (sum_of_steps(after.status) > sum_of_steps(before.status)) {
    return fmt::format("The ranks go on: rank 0 was in step {} and is in step {}, {:.1f} s later.",
                       before.status.ranks.at(0).step, first.step, apart_s);
  }
  if (first.step == 0) return "The ranks have not begun to train: the run is starting.";
  return fmt::format(
      "No step was completed in {:.1f} s, and no rank waits for another: they are "
      "{}, in step {} for {}.",
      apart_s, after.status.phase, first.step, format_duration(first.age_s));
}

}  // namespace

std::string read_flights(const std::string& run_directory, const JobStatus& status,
                         std::int64_t request) {
  std::vector<std::string> texts;
  std::set<int> processes;
  for (const RankStatus& rank : status.ranks) {
    if (rank.flights_written < request) continue;
    // Ranks that are threads of one process have one file, that of the first. One of another was
    // left by an earlier start.
    if (!processes.insert(rank.process).second) continue;
    if (auto text = read_text(flight_answer_file(run_directory, rank.rank)))
      texts.push_back(std::move(*text));
  }
  return collective::merge_flights(texts, kFlightNow);
}

Diagnosis diagnose(const JobLook& before, const JobLook& after, double apart_s) {
  Diagnosis found;
  find_stopped_ranks(after.status, found);
  const bool goes_on = sum_of_steps(after.status) > sum_of_steps(before.status);
  if (!goes_on) {
    find_waiting_ranks(before, after, found);
    if (found.stands_still) find_lagging_ranks(after.status, found);
  }
  if (!found.stands_still) found.lines.push_back(describe_progress(before, after, apart_s));
  return found;
}

}  // namespace shoal::apps
