#include "shoal/schedule/schedule_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/schedule/timeline.h"

namespace shoal::schedule {
namespace {

constexpr int kMost = 1'000'000;  // the most stages, and the most micro-batches

[[noreturn]] void reject(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::kConfig, "schedule", file + ": " + what);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

/// Splits at every separator and strips the blanks around each part.
std::vector<std::string_view> pieces(std::string_view text, char separator) {
  std::vector<std::string_view> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    list.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list;
}

/// Parses a cell such as "12SEND_F3" or "12UNSHARD"; empty when it is not an action.
std::optional<Action> parse(std::string_view cell) {
  // Numbers have no sign.
  if (cell.starts_with('-')) return std::nullopt;
  Action action;
  const char* const end = cell.data() + cell.size();
  const auto stage = std::from_chars(cell.data(), end, action.stage);
  if (stage.ec != std::errc{}) return std::nullopt;
  // The micro-batch is read from the end, because the mark between the numbers may hold letters and
  // underscores.
  const char* digits = end;
  while (digits > stage.ptr && std::isdigit(static_cast<unsigned char>(digits[-1]))) --digits;
  const std::string_view word(stage.ptr, digits - stage.ptr);
  for (int kind = 0; kind <= static_cast<int>(Kind::kRelease); ++kind) {
    action.kind = static_cast<Kind>(kind);
    if (word != mark(action.kind)) continue;
    const bool numbered = std::from_chars(digits, end, action.micro_batch).ec == std::errc{};
    if (numbered == moves_parameters(action.kind)) return std::nullopt;
    return action;
  }
  return std::nullopt;
}

/// Checks that stages are 0, 1, 2 ..., that one rank computes each, and that every action is of one
/// of them.
std::vector<int> owners(const Schedule& schedule, const std::string& file) {
  std::map<int, int> owner;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Action& action : schedule.table[rank]) {
      if (!is_compute(action.kind)) continue;
      // The first rank that computes a stage owns it; a second one is a mistake.
      const auto [at, fresh] = owner.emplace(action.stage, rank);
      if (!fresh && at->second != rank) {
        reject(file, fmt::format("line {}: {}: stage {} is computed on line {} already", rank + 1,
                                 to_string(action), action.stage, at->second + 1));
      }
    }
  }
  std::vector<int> list;
  for (const auto& [stage, rank] : owner) {
    if (stage != static_cast<int>(list.size()))
      reject(file, fmt::format("nobody computes stage {}", list.size()));
    list.push_back(rank);
  }
  // An UNSHARD or a message of a stage that no line computes.
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Action& action : schedule.table[rank]) {
      if (action.stage >= static_cast<int>(list.size())) {
        reject(file, fmt::format("line {}: {}: nobody computes stage {}", rank + 1,
                                 to_string(action), action.stage));
      }
    }
  }
  return list;
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.table) {
    std::vector<std::string> cells;
    for (const Action& action : actions) cells.push_back(to_string(action));
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

Schedule from_csv(std::string_view text, const std::string& file) {
  Schedule schedule;
  schedule.name = file;
  bool transfers = false;
  auto lines = pieces(text, '\n');
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  if (lines.empty()) reject(file, "is empty: one line a rank is expected");
  // One line a rank; an empty cell is a slot in which the rank idles.
  for (std::size_t line = 0; line < lines.size(); ++line) {
    auto& actions = schedule.table.emplace_back();
    for (const std::string_view cell : pieces(lines[line], ',')) {
      if (cell.empty()) continue;
      const auto action = parse(cell);
      if (!action || action->stage > kMost || action->micro_batch > kMost) {
        reject(file, fmt::format("line {}: \"{}\": must be stage, mark (F, B, I, W, SEND_F, "
                                 "RECV_F, SEND_B, RECV_B) and micro-batch, or stage and mark "
                                 "(UNSHARD, RESHARD)",
                                 line + 1, cell));
      }
      transfers |= is_send(action->kind) || is_receive(action->kind);
      schedule.micro_batches = std::max(schedule.micro_batches, action->micro_batch + 1);
      actions.push_back(*action);
    }
    if (actions.empty())
      reject(file, fmt::format("line {} holds no action: every rank computes something", line + 1));
  }
  // The file names no owners: who computes a stage holds it.
  schedule.rank_of_stage = owners(schedule, file);
  try {
    // A file with messages is taken as it is, with the peers filled in; one without gets them where
    // stages change ranks.
    if (transfers) {
      for (auto& actions : schedule.table) {
        for (Action& action : actions) {
          if (!is_send(action.kind) && !is_receive(action.kind)) continue;
          const int other =
              action.kind == Kind::kSendActivation || action.kind == Kind::kReceiveGradient
                  ? action.stage + 1
                  : action.stage - 1;
          if (other >= 0 && other < schedule.stages()) action.peer = schedule.rank_of_stage[other];
        }
      }
    } else {
      add_transfers(schedule);
    }
    check(schedule);
  } catch (const Error& error) {
    // check() blames its caller (usage); here the caller is a file.
    throw Error(ErrorKind::kConfig, "schedule", error.message());
  }
  return schedule;
}

}  // namespace shoal::schedule
