#include "apps/shoal/watch/job_status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// Seconds since `since_ns` on Clock; -1 for 0, which stands for never.
double seconds_since(std::int64_t since_ns) {
  if (since_ns == 0) return -1;
  const std::int64_t now_ns = Clock::now().time_since_epoch().count();
  // The board was read a moment before the clock, and may be newer where another core wrote it.
  return now_ns > since_ns ? static_cast<double>(now_ns - since_ns) * 1e-9 : 0;
}

RankStatus status_of(int rank, const train::RankLine& line) {
  RankStatus status{.rank = rank,
                    .process = line.process,
                    .step = line.step,
                    .age_s = seconds_since(line.progress_ns),
                    .flights_written = line.flights_written};
  if (status.process == 0) return status;
  // The number of a process that was waited for may be another's by now.
  status.state = line.ended ? ProcessState::kEnded : state_of_process(status.process);
  if (status.state != ProcessState::kEnded) status.resident_bytes = resident_bytes(status.process);
  return status;
}

}  // namespace

const char* name(train::RunPhase phase) {
  switch (phase) {
    case train::RunPhase::kStarting:
      return "starting";
    case train::RunPhase::kTraining:
      return "training";
    case train::RunPhase::kEvaluating:
      return "evaluating";
    case train::RunPhase::kSaving:
      return "saving";
    case train::RunPhase::kEnding:
      break;
  }
  return "ending";
}

JobStatus read_job_status(const train::RunBoard& board, const std::string& launcher) {
  const train::RunLine& run = *board.run;
  JobStatus status{.process = ::getpid(),
                   .launcher = launcher,
                   .phase = name(run.phase),
                   .stopping = run.stop_asked,
                   .first_step = run.first_step,
                   .total_steps = run.total_steps,
                   .training_s = seconds_since(run.trained_since_ns)};
  // Before the step: whoever sees the number finds the step that belongs to it.
  status.saves_answered = run.saves_answered;
  status.saved_step = run.saved_step;
  for (std::size_t rank = 0; rank < board.ranks.size(); ++rank)
    status.ranks.push_back(status_of(static_cast<int>(rank), board.ranks[rank]));
  return status;
}

std::string to_json(const JobStatus& status) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankStatus& rank : status.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"process", rank.process},
                     {"state", name(rank.state)},
                     {"step", rank.step},
                     {"age_s", rank.age_s},
                     {"resident_bytes", rank.resident_bytes},
                     {"flights_written", rank.flights_written}});
  }
  const nlohmann::ordered_json object = {{"process", status.process},
                                         {"launcher", status.launcher},
                                         {"phase", status.phase},
                                         {"stopping", status.stopping},
                                         {"first_step", status.first_step},
                                         {"total_steps", status.total_steps},
                                         {"training_s", status.training_s},
                                         {"request", status.request},
                                         {"saves_answered", status.saves_answered},
                                         {"saved_step", status.saved_step},
                                         {"ranks", std::move(ranks)}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

JobStatus parse_job_status(const std::string& text) {
  try {
    const auto object = nlohmann::json::parse(text);
    JobStatus status{.process = object.at("process"),
                     .launcher = object.at("launcher"),
                     .phase = object.at("phase"),
                     .stopping = object.at("stopping"),
                     .first_step = object.at("first_step"),
                     .total_steps = object.at("total_steps"),
                     .training_s = object.at("training_s"),
                     .request = object.at("request"),
                     .saves_answered = object.at("saves_answered"),
                     .saved_step = object.at("saved_step")};
    for (const auto& rank : object.at("ranks")) {
      status.ranks.push_back({.rank = rank.at("rank"),
                              .process = rank.at("process"),
                              .state = process_state_named(rank.at("state").get<std::string>()),
                              .step = rank.at("step"),
                              .age_s = rank.at("age_s"),
                              .resident_bytes = rank.at("resident_bytes"),
                              .flights_written = rank.at("flights_written")});
    }
    return status;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kData, "watch",
                fmt::format("the job answers what is no status: {}", error.what()));
  }
}

}  // namespace shoal::apps
