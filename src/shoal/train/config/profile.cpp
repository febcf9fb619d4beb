#include "shoal/train/config/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::train {
namespace {

/// Nanoseconds: whole numbers keep their differences.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string kind;
  std::string name;
  double flops = 0;
  double bytes = 0;
};

struct RankSlices {
  std::vector<Slice> spans;
  std::vector<Slice> transfers;
};

std::int64_t nanoseconds(const nlohmann::json& micro) {
  return std::llround(micro.get<double>() * 1e3);
}

std::map<int, RankSlices> slices_of(const nlohmann::json& events) {
  std::map<int, RankSlices> ranks;
  for (const auto& event : events) {
    if (event.at("ph") != "X") continue;
    const nlohmann::json arguments = event.value("args", nlohmann::json::object());
    Slice slice{.begin = nanoseconds(event.at("ts")),
                .kind = event.at("cat"),
                .name = event.at("name"),
                .flops = arguments.value("flops", 0.0),
                .bytes = arguments.value("bytes", 0.0)};
    slice.end = slice.begin + nanoseconds(event.at("dur"));
    RankSlices& rank = ranks[event.at("pid")];
    (slice.kind == "transfer" ? rank.transfers : rank.spans).push_back(std::move(slice));
  }
  // Outer slices stand before those inside them.
  for (auto& [number, rank] : ranks) {
    std::stable_sort(rank.spans.begin(), rank.spans.end(), [](const Slice& a, const Slice& b) {
      return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
    });
    std::stable_sort(rank.transfers.begin(), rank.transfers.end(),
                     [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
  }
  return ranks;
}

/// Returns the row of a profile that the own time of a slice counts in.
std::string row_of(const Slice& slice) {
  if (slice.kind == "operator") {
    // Forward and backward of an operator share a row.
    const std::string name = slice.name.substr(0, slice.name.find(' '));
    return name == "linear" ? "linear: bias, residual, conversion" : name;
  }
  if (slice.kind == "communication") return "communication, exposed";
  if (slice.kind == "data") return "data wait";
  if (slice.kind == "forward" || slice.kind == "backward" || slice.kind == "unit" ||
      slice.kind == "micro-batch") {
    return "autograd and glue between operators";
  }
  return slice.kind;
}

using Interval = std::pair<std::int64_t, std::int64_t>;

std::int64_t length(const std::vector<Interval>& intervals) {
  std::int64_t sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

/// Joins what overlaps; `intervals` are in the order of their begin.
std::vector<Interval> united(const std::vector<Interval>& intervals) {
  std::vector<Interval> result;
  for (const Interval& one : intervals) {
    if (!result.empty() && one.first <= result.back().second) {
      result.back().second = std::max(result.back().second, one.second);
    } else {
      result.push_back(one);
    }
  }
  return result;
}

/// Intersects two lists of stretches, each in order and without overlaps.
std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> result;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t begin = std::max(a[i].first, b[j].first);
    const std::int64_t end = std::min(a[i].second, b[j].second);
    if (begin < end) result.emplace_back(begin, end);
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return result;
}

/// Adds up the slices of all ranks; `describe` divides by ranks and steps.
class Sums {
 public:
  void add(const RankSlices& rank) {
    std::vector<std::size_t> open;
    std::vector<std::int64_t> inside(rank.spans.size(), 0);
    std::vector<std::size_t> root(rank.spans.size());
    const auto in_step = [&](std::size_t i) { return rank.spans[root[i]].kind == "step"; };
    std::vector<Interval> step_times;
    std::vector<Interval> communication;
    for (std::size_t i = 0; i < rank.spans.size(); ++i) {
      const Slice& slice = rank.spans[i];
      while (!open.empty() && rank.spans[open.back()].end <= slice.begin) open.pop_back();
      if (!open.empty()) inside[open.back()] += slice.end - slice.begin;
      root[i] = open.empty() ? i : open.front();
      if (slice.kind == "step") step_times.emplace_back(slice.begin, slice.end);
      if (slice.kind == "communication") communication.emplace_back(slice.begin, slice.end);
      if (slice.kind == "unit" && in_step(i))
        add_to(units_, slice.name, slice, slice.end - slice.begin);
      open.push_back(i);
    }
    for (std::size_t i = 0; i < rank.spans.size(); ++i) {
      const Slice& slice = rank.spans[i];
      const std::int64_t own = slice.end - slice.begin - inside[i];
      if (slice.kind == "step") {
        uncovered_ += own;
      } else if (in_step(i)) {
        add_to(rows_, row_of(slice), slice, own);
      } else {
        add_to(outside_, rank.spans[root[i]].kind, slice, own);
      }
    }
    steps_ += step_times.size();
    step_time_ += length(step_times);
    std::vector<Interval> transfers;
    for (const Slice& slice : rank.transfers) transfers.emplace_back(slice.begin, slice.end);
    const auto in_flight = common(united(transfers), step_times);
    in_flight_ += length(in_flight);
    exposed_in_flight_ += length(common(in_flight, united(communication)));
  }

  void write(Profile& profile) const {
    const auto steps = static_cast<double>(steps_);
    const auto mean = [&](std::int64_t ns) { return steps > 0 ? 1e-9 * ns / steps : 0; };
    profile.step_s = mean(step_time_);
    profile.uncovered_s = mean(uncovered_);
    profile.in_flight_s = mean(in_flight_);
    profile.hidden_s = mean(in_flight_ - exposed_in_flight_);
    profile.steps = profile.ranks > 0 ? static_cast<int>(steps_ / profile.ranks) : 0;
    profile.rows = sorted(rows_, steps);
    profile.outside = sorted(outside_, steps);
    profile.units = sorted(units_, steps);
  }

 private:
  struct Row {
    std::int64_t ns = 0;
    double flops = 0;
    double bytes = 0;
  };
  using Rows = std::map<std::string, Row>;

  static void add_to(Rows& rows, const std::string& name, const Slice& slice, std::int64_t ns) {
    Row& row = rows[name];
    row.ns += ns;
    row.flops += slice.flops;
    row.bytes += slice.bytes;
  }

  static std::vector<ProfileRow> sorted(const Rows& rows, double steps) {
    std::vector<ProfileRow> list;
    for (const auto& [name, row] : rows) {
      list.push_back(
          {name, 1e-9 * static_cast<double>(row.ns) / steps, row.flops / steps, row.bytes / steps});
    }
    std::stable_sort(list.begin(), list.end(), [](const ProfileRow& a, const ProfileRow& b) {
      return a.seconds > b.seconds;
    });
    return list;
  }

  Rows rows_;
  Rows outside_;
  Rows units_;
  std::size_t steps_ = 0;
  std::int64_t step_time_ = 0;
  std::int64_t uncovered_ = 0;
  std::int64_t in_flight_ = 0;
  std::int64_t exposed_in_flight_ = 0;
};

double mean_of(const nlohmann::json& values) {
  double sum = 0;
  for (const auto& value : values) sum += value.get<double>();
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// `memory`: the peak is that of memory, beyond which bytes can only have come from the cache.
std::string rate_of(double amount, double seconds, double peak, const char* unit, bool memory) {
  if (amount <= 0 || seconds <= 0) return {};
  const double rate = amount / seconds;
  std::string text = fmt::format("{:.4g} {}", rate / 1e9, unit);
  if (memory && peak > 0 && rate > peak)
    return text + fmt::format(", from the cache (memory gives {:.4g})", peak / 1e9);
  if (peak > 0) text += fmt::format(", {:.0f} % of {:.4g}", 100 * rate / peak, peak / 1e9);
  return text;
}

}  // namespace

double Profile::rows_s() const {
  double sum = 0;
  for (const ProfileRow& row : rows) sum += row.seconds;
  return sum;
}

Profile profile_of(const std::string& trace) {
  try {
    const auto document = nlohmann::json::parse(trace);
    const auto& head = document.at("otherData");
    if (head.value("program", "") != "shoal train")
      throw Error(ErrorKind::kData, "profile", "the trace is not of `shoal train`");
    Profile profile;
    profile.first_step = head.at("first_step");
    profile.last_step = head.at("last_step");
    profile.ranks = head.at("ranks");
    profile.threads = head.at("threads");
    profile.peak_flops = mean_of(head.at("peak_flops"));
    profile.peak_bytes_per_s = mean_of(head.at("peak_bytes_per_s"));
    profile.clock_error_us = head.at("clock_error_us");
    profile.dropped = head.at("dropped");
    Sums sums;
    for (const auto& [number, rank] : slices_of(document.at("traceEvents"))) sums.add(rank);
    sums.write(profile);
    return profile;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kData, "profile", fmt::format("not a trace: {}", error.what()));
  }
}

std::string describe(const Profile& profile, bool units) {
  std::string text;
  const auto line = [&](const std::string& name, double seconds, const std::string& rate) {
    const double share = profile.step_s > 0 ? 100 * seconds / profile.step_s : 0;
    fmt::format_to(std::back_inserter(text), "{:<38}{:>10.3f}{:>8.1f} %{}{}\n", name, 1e3 * seconds,
                   share, rate.empty() ? "" : "   ", rate);
  };
  text = fmt::format(
      "Steps {} to {} on {} rank{} of {} thread{}: {:.3f} ms a step (means over ranks and steps).\n"
      "\n{:<38}{:>10}{:>10}   rate\n",
      profile.first_step, profile.last_step, profile.ranks, profile.ranks == 1 ? "" : "s",
      profile.threads, profile.threads == 1 ? "" : "s", 1e3 * profile.step_s, "", "ms a step",
      "share");
  for (const ProfileRow& row : profile.rows) {
    const std::string rate =
        row.flops > 0 ? rate_of(row.flops, row.seconds, profile.peak_flops, "GFLOP/s", false)
                      : rate_of(row.bytes, row.seconds, profile.peak_bytes_per_s, "GB/s", true);
    line(row.name, row.seconds, rate);
  }
  line("in no span", profile.uncovered_s, "");
  line("sum", profile.rows_s() + profile.uncovered_s, "");
  if (profile.ranks > 1) {
    const double hidden =
        profile.in_flight_s > 0 ? 100 * profile.hidden_s / profile.in_flight_s : 0;
    text += fmt::format(
        "\nOperations between ranks were in flight for {:.3f} ms a step; in {:.0f} % of that time "
        "the rank computed.\n",
        1e3 * profile.in_flight_s, hidden);
  }
  if (!profile.outside.empty()) {
    text += "\nBetween the steps, in ms for each step:";
    const char* comma = " ";
    for (const ProfileRow& row : profile.outside) {
      text += fmt::format("{}{} {:.3f}", comma, row.name, 1e3 * row.seconds);
      comma = ", ";
    }
    text += ".\n";
  }
  if (units && !profile.units.empty()) {
    text +=
        fmt::format("\n{:<38}{:>10}{:>10}\n", "with all that lies inside", "ms a step", "share");
    for (const ProfileRow& row : profile.units) line(row.name, row.seconds, "");
  }
  if (profile.peak_flops > 0) {
    text += fmt::format(
        "\nPeaks are those of plain loops on all ranks at once, for each rank: {:.4g} GFLOP/s of "
        "float32 multiply-adds, {:.4g} GB/s of y = y + 3 x in memory.\n",
        profile.peak_flops / 1e9, profile.peak_bytes_per_s / 1e9);
  }
  if (profile.dropped > 0)
    text += fmt::format("{} spans found no room and count where they lay.\n", profile.dropped);
  return text;
}

std::string to_json(const Profile& profile) {
  const auto list = [](const std::vector<ProfileRow>& rows) {
    nlohmann::json all = nlohmann::json::array();
    for (const ProfileRow& row : rows) {
      all.push_back({{"name", row.name},
                     {"seconds", row.seconds},
                     {"flops", row.flops},
                     {"bytes", row.bytes}});
    }
    return all;
  };
  const nlohmann::json object{{"first_step", profile.first_step},
                              {"last_step", profile.last_step},
                              {"ranks", profile.ranks},
                              {"threads", profile.threads},
                              {"step_s", profile.step_s},
                              {"rows", list(profile.rows)},
                              {"uncovered_s", profile.uncovered_s},
                              {"in_flight_s", profile.in_flight_s},
                              {"hidden_s", profile.hidden_s},
                              {"outside", list(profile.outside)},
                              {"units", list(profile.units)},
                              {"peak_flops", profile.peak_flops},
                              {"peak_bytes_per_s", profile.peak_bytes_per_s},
                              {"clock_error_us", profile.clock_error_us},
                              {"dropped", profile.dropped}};
  return object.dump() + "\n";
}

}  // namespace shoal::train
