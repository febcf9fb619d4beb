#include "apps/shoal/watch/status_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "shoal/base/figures.h"

namespace shoal::apps {
namespace {

using Json = nlohmann::ordered_json;

/// "training, step 120 of 800 (15 %), 12 s left".
std::string progress_of(const RunSummary& run) {
  std::string text = fmt::format("{}, step {}", state_of(run), run.steps());
  if (const std::int64_t total = run.total_steps(); total > 0) {
    text += fmt::format(" of {} ({:.0f} %)", total,
                        100.0 * static_cast<double>(run.steps()) / static_cast<double>(total));
  }
  if (const auto left = run.seconds_left())
    text += fmt::format(", {} left", format_duration(*left));
  return text;
}

/// How a run that is over ended: "stopped by SIGTERM at 2026-01-02 03:04:05".
std::string ending_of_run(const LastRun& last) {
  return fmt::format("The last start {} at {:%Y-%m-%d %H:%M:%S}.", describe_code(last.code),
                     fmt::localtime(static_cast<std::time_t>(last.ended)));
}

std::string silence_of(const RunSummary& run) {
  if (run.holder_state == ProcessState::kStopped) {
    return fmt::format("It stands still: a signal has stopped {} (kill -CONT {}).",
                       run.holder->text(), run.holder->process);
  }
  if (!run.holder->is_here())
    return fmt::format("It is run by {}, and answers only there.", run.holder->text());
  return fmt::format("It is used by {}, which does not answer: it begins or ends.",
                     run.holder->text());
}

std::string figures_of(const train::StepMetrics& m, const std::string& unit) {
  std::string text = fmt::format("loss {:.4f}  {} {}/s", m.loss, format_si(m.tokens_per_s), unit);
  if (m.mfu) text += fmt::format("  MFU {:.1f} %", 100 * *m.mfu);
  if (m.memory_bytes) text += "  tensors " + format_si(*m.memory_bytes, "B");
  return text;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ranks_json(const JobStatus& job) {
  Json ranks = Json::array();
  for (const RankStatus& rank : job.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"process", rank.process > 0 ? Json(rank.process) : Json(nullptr)},
                     {"state", name(rank.state)},
                     {"step", rank.step},
                     {"age_s", rank.age_s >= 0 ? Json(rank.age_s) : Json(nullptr)},
                     {"resident_bytes", rank.resident_bytes}});
  }
  return ranks;
}

}  // namespace

std::vector<std::string> headline(const RunSummary& run) {
  std::vector<std::string> lines{fmt::format("{}: {}", run.directory, progress_of(run))};
  if (!run.recent.empty()) lines.push_back(figures_of(run.recent.back(), run.unit()));
  if (const train::StepMetrics* step = run.last_evaluated()) {
    lines.push_back(
        fmt::format("validation loss {:.4f} after step {}", step->evaluation->loss, step->step));
  }
  lines.push_back(run.checkpoint ? fmt::format("last checkpoint: step {}", *run.checkpoint)
                                 : "no checkpoint yet");
  if (!run.job && run.holder) lines.push_back(silence_of(run));
  if (run.runs()) return lines;
  if (!run.last) {
    lines.emplace_back(
        "It was killed, its machine went down, or an older Shoal ran it: it left no word of its "
        "end.");
    return lines;
  }
  lines.push_back(ending_of_run(*run.last));
  if (!run.last->cause.empty()) lines.push_back(run.last->cause);
  if (!ended_in_order(run.last->code))
    lines.push_back(fmt::format("Logs are in {}/logs.", run.directory));
  return lines;
}

std::string rank_line(const RankStatus& rank, std::size_t ranks) {
  const std::string of = fmt::format("rank {} of {}", rank.rank, ranks);
  if (rank.process == 0) return of + "  not known here";
  const std::string age = rank.age_s < 0 ? "not begun" : fmt::format("{:.1f} s ago", rank.age_s);
  return fmt::format("{}  process {:<8} {:<8} step {:<8} {}  {}", of, rank.process,
                     name(rank.state), rank.step, age,
                     format_si(static_cast<double>(rank.resident_bytes), "B"));
}

std::string status_text(const RunSummary& run) {
  std::string text;
  for (const std::string& line : headline(run)) text += line + "\n";
  if (!run.job) return text;
  for (const RankStatus& rank : run.job->ranks) {
    if (rank.process != 0) text += rank_line(rank, run.job->ranks.size()) + "\n";
  }
  if (!run.job->launcher.empty() && run.job->ranks.size() > 1) {
    text += fmt::format(
        "{} has started the ranks: rank 0 answers for itself, and for all with steps and losses.\n",
        run.job->launcher);
  }
  return text;
}

std::string status_json(const RunSummary& run) {
  const train::StepMetrics* step = run.recent.empty() ? nullptr : &run.recent.back();
  const auto of_step = [&](double train::StepMetrics::*member) {
    return step ? Json(step->*member) : Json(nullptr);
  };
  const LastRun* ending = run.last && !run.runs() ? &*run.last : nullptr;
  const std::int64_t total = run.total_steps();
  const Json object = {{"directory", run.directory},
                       {"state", state_of(run)},
                       {"step", run.steps()},
                       {"total_steps", total > 0 ? Json(total) : Json(nullptr)},
                       {"seconds_left", or_null(run.seconds_left())},
                       {"loss", of_step(&train::StepMetrics::loss)},
                       {"tokens_per_s", of_step(&train::StepMetrics::tokens_per_s)},
                       {"mfu", step ? or_null(step->mfu) : Json(nullptr)},
                       {"memory_bytes", step ? or_null(step->memory_bytes) : Json(nullptr)},
                       {"checkpoint_step", or_null(run.checkpoint)},
                       {"process", run.job ? Json(run.job->process) : Json(nullptr)},
                       {"stopping", run.job && run.job->stopping},
                       {"ranks", run.job ? ranks_json(*run.job) : Json::array()},
                       {"code", ending ? Json(ending->code) : Json(nullptr)},
                       {"ended", ending ? Json(ending->ended) : Json(nullptr)},
                       {"cause", ending ? Json(ending->cause) : Json(nullptr)}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shoal::apps
