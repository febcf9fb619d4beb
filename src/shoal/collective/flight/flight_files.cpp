#include "shoal/collective/flight/flight_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "shoal/base/duration.h"
#include "shoal/base/file.h"
#include "shoal/base/system_error.h"

namespace shoal::collective {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kMerged = "flight.jsonl";
constexpr const char* kPrefix = "flight-rank-";

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

double seconds_since_1970(std::chrono::system_clock::time_point time) {
  return to_seconds(time.time_since_epoch());
}

/// Converts to seconds since 1970. The clocks of one node agree, those of several nodes as far as
/// they are synchronised.
double wall_time(Clock::time_point time) {
  const auto now = std::chrono::system_clock::now();
  return seconds_since_1970(
      now - std::chrono::duration_cast<std::chrono::system_clock::duration>(Clock::now() - time));
}

std::string lines_of(const FlightOwner& owner, const FlightBook& book, const Error& cause) {
  std::string text = line_of({{"record", "rank"},
                              {"run", owner.run},
                              {"rank", owner.rank},
                              {"ranks", owner.ranks},
                              {"written", seconds_since_1970(std::chrono::system_clock::now())},
                              {"kind", name(cause.kind())},
                              {"error", cause.what()}});
  return text + flight_lines(owner, book);
}

}  // namespace

std::string flight_lines(const FlightOwner& owner, const FlightBook& book) {
  std::string text;
  for (const FlightPage& page : book.pages()) {
    for (const FlightEntry& entry : page.entries) {
      const bool complete = entry.ended != Clock::time_point{};
      const double took =
          std::chrono::duration<double, std::micro>(entry.ended - entry.began).count();
      text += line_of({{"record", "call"},
                       {"run", owner.run},
                       {"group", page.group},
                       {"members", page.members},
                       {"rank", entry.rank},
                       {"sequence", entry.sequence},
                       {"call", entry.call},
                       {"began", wall_time(entry.began)},
                       {"took_us", complete ? Json(took) : Json(nullptr)}});
    }
  }
  return text;
}

namespace {

/// Writes aside and renames, so that a reader finds the old file or the new one, never a part.
void replace_file(const fs::path& path, const std::string& text) {
  replace_text(path.string(), text, "flight recorder");
}

/// Locks a directory, so that no other rank merges files there meanwhile.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory)
      : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ < 0 || ::flock(fd_, LOCK_EX) != 0)
      throw system_error(ErrorKind::kOutput, "flight recorder", "cannot lock " + directory);
  }
  ~DirectoryLock() { ::close(fd_); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_;
};

std::vector<std::string> rank_files(const std::string& directory) {
  std::vector<std::string> texts;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(".jsonl")) continue;
    texts.push_back(read_text(entry.path().string()).value_or(""));
  }
  return texts;
}

/// A line {"record":"call"} of one rank.
struct RecordedCall {
  Json line;
  bool complete;
};

/// Holds what the ranks have recorded of one group: its members, and the calls of each rank by
/// sequence.
struct History {
  std::set<int> members;
  std::map<int, std::map<std::uint64_t, RecordedCall>> calls;
};

/// Returns the first call that is not complete on every rank with a record; nothing where all are.
/// A rank whose last call is earlier than that of another is held up by the next one.
std::optional<std::uint64_t> first_stuck_call(const History& history) {
  std::optional<std::uint64_t> stuck;
  std::uint64_t last = 0;
  for (const auto& [rank, calls] : history.calls) {
    last = std::max(last, calls.rbegin()->first);
    for (const auto& [sequence, call] : calls)
      if (!call.complete && (!stuck || sequence < *stuck)) stuck = sequence;
  }
  for (const auto& [rank, calls] : history.calls) {
    const std::uint64_t own = calls.rbegin()->first;
    if (own < last && (!stuck || own + 1 < *stuck)) stuck = own + 1;
  }
  return stuck;
}

/// Returns the verdict on a group that stands still: which ranks never entered its first stuck
/// call, which are inside it, and which wait in a later one. Nothing for a group that has completed
/// all.
std::optional<Json> verdict(const std::string& group, const History& history) {
  const std::optional<std::uint64_t> stuck = first_stuck_call(history);
  if (!stuck) return std::nullopt;
  std::vector<std::string> parts;
  std::vector<int> inside;
  std::vector<int> without_record;
  std::vector<std::string> ahead;
  std::string what;
  for (const int rank : history.members) {
    const auto found = history.calls.find(rank);
    if (found == history.calls.end()) {
      without_record.push_back(rank);
      continue;
    }
    const auto& [own_last, last_call] = *found->second.rbegin();
    const auto at = found->second.find(*stuck);
    if (at != found->second.end()) what = at->second.line["call"];
    if (own_last < *stuck) {
      parts.push_back(fmt::format("rank {} never entered it (its last was #{} {})", rank, own_last,
                                  last_call.line["call"].get<std::string>()));
    } else if (at != found->second.end() && !at->second.complete) {
      inside.push_back(rank);
    } else if (!last_call.complete) {
      // It could end its part without the others, as the root of a broadcast can.
      ahead.push_back(fmt::format("rank {} has done its part and waits in #{} {}", rank, own_last,
                                  last_call.line["call"].get<std::string>()));
    }
  }
  const auto many = [](const std::vector<int>& ranks) {
    return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  };
  if (!inside.empty())
    parts.push_back(fmt::format("{} {} inside it", many(inside), inside.size() > 1 ? "are" : "is"));
  parts.insert(parts.end(), ahead.begin(), ahead.end());
  if (!without_record.empty())
    parts.push_back(fmt::format("{} left no record", many(without_record)));
  return Json{{"record", "verdict"},
              {"group", group},
              {"sequence", *stuck},
              {"text", fmt::format("#{}{}{}: {}", *stuck, what.empty() ? "" : " ", what,
                                   fmt::join(parts, "; "))}};
}

bool is_rank_line(Json& line) {
  return line.value("record", "") == "rank" && line["rank"].is_number_integer() &&
         line["written"].is_number();
}

bool is_call_line(Json& line) {
  if (line.value("record", "") != "call" || !line["rank"].is_number_integer() ||
      !line["sequence"].is_number_unsigned() || !line["call"].is_string() ||
      !line["group"].is_string() || !line["members"].is_array())
    return false;
  return std::all_of(line["members"].begin(), line["members"].end(),
                     [](const Json& rank) { return rank.is_number_integer(); });
}

/// Returns the valid lines of one run, in no order.
std::vector<Json> lines_of_run(const std::vector<std::string>& files, const std::string& run) {
  std::vector<Json> lines;
  for (const std::string& file : files) {
    std::istringstream text(file);
    for (std::string one; std::getline(text, one);) {
      // A file may be of an earlier run or another program: lines that are not valid are skipped,
      // as a report about a failure must not fail itself.
      Json line = Json::parse(one, nullptr, false);
      if (!line.is_object() || !line["run"].is_string() || line["run"] != run ||
          !line["record"].is_string())
        continue;
      if (is_rank_line(line) || is_call_line(line)) lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace

std::string merge_flights(const std::vector<std::string>& files, const std::string& run) {
  std::map<int, Json> ranks;
  std::map<std::string, History> groups;
  for (Json& line : lines_of_run(files, run)) {
    const int rank = line["rank"];
    if (line["record"] == "rank") {
      ranks[rank] = std::move(line);
      continue;
    }
    History& history = groups[line["group"]];
    for (const int member : line["members"]) history.members.insert(member);
    history.members.insert(rank);
    const bool complete = line["took_us"].is_number();
    const std::uint64_t sequence = line["sequence"];
    RecordedCall& known =
        history.calls[rank].try_emplace(sequence, RecordedCall{Json(), false}).first->second;
    // Several ranks may have recorded the call. One that saw it complete saw it last.
    if (known.line.is_null() || complete) known = {std::move(line), complete};
  }
  std::string text;
  for (const auto& [rank, line] : ranks) text += line_of(line);
  for (const auto& [group, history] : groups) {
    for (const auto& [rank, calls] : history.calls)
      for (const auto& [sequence, call] : calls) text += line_of(call.line);
  }
  for (const auto& [group, history] : groups)
    if (const auto stuck = verdict(group, history)) text += line_of(*stuck);
  return text;
}

void write_flight(const std::string& directory, const FlightOwner& owner, const FlightBook& book,
                  const Error& cause) {
  std::error_code failed;
  fs::create_directories(directory, failed);
  // Each rank merges what is there when it writes. The lock makes these merges follow one another,
  // so the last one has the records of all ranks that wrote.
  const DirectoryLock lock(directory);
  replace_file(fs::path(directory) / fmt::format("{}{}.jsonl", kPrefix, owner.rank),
               lines_of(owner, book, cause));
  replace_file(fs::path(directory) / kMerged, merge_flights(rank_files(directory), owner.run));
}

void forget_flight(const std::string& directory, int rank) {
  std::error_code ignored;
  fs::remove(fs::path(directory) / fmt::format("{}{}.jsonl", kPrefix, rank), ignored);
  if (rank == 0) fs::remove(fs::path(directory) / kMerged, ignored);
}

}  // namespace shoal::collective
