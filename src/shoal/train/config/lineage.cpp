#include "shoal/train/config/lineage.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shoal/base/error.h"

namespace shoal::train {
namespace {

constexpr const char* kLineage = "lineage";

}  // namespace

std::string to_json(const LineageStep& step) {
  std::string members;
  for (const LineageMember& member : step.members) {
    members += fmt::format(R"({}{{"id": "{}", "first_sample": {}, "samples": {}, "threads": {}}})",
                           members.empty() ? "" : ", ", member.id, member.first_sample,
                           member.samples, member.threads);
  }
  return fmt::format(R"({{"step": {}, "epoch": {}, "members": [{}], "state": "{}"}})", step.step,
                     step.epoch, members, step.state);
}

LineageStep parse_lineage(const std::string& line) {
  try {
    const auto object = nlohmann::json::parse(line);
    LineageStep step{.step = object.at("step"),
                     .epoch = object.at("epoch"),
                     .members = {},
                     .state = object.at("state")};
    for (const auto& member : object.at("members")) {
      step.members.push_back({.id = member.at("id"),
                              .first_sample = member.at("first_sample"),
                              .samples = member.at("samples"),
                              .threads = member.at("threads")});
    }
    return step;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kData, kLineage,
                fmt::format("not a line of a lineage: {}", error.what()));
  }
}

std::vector<LineageStep> read_lineage(const std::string& path) {
  std::vector<LineageStep> steps;
  StepLines::read(path, kLineage, [&](const std::string& line) {
    LineageStep step = parse_lineage(line);
    if (!steps.empty() && step.step != steps.back().step + 1) {
      throw Error(ErrorKind::kData, kLineage,
                  fmt::format("step {} follows step {}", step.step, steps.back().step));
    }
    steps.push_back(std::move(step));
    return true;
  });
  return steps;
}

namespace {

/// Returns the last step of which the file keeps the line, where the run goes on behind `step`.
std::int64_t last_step_to_keep(const std::string& path, std::int64_t step) {
  std::int64_t last = 0;
  for (const LineageStep& line : read_lineage(path))
    if (line.step <= step) last = line.step;
  return last == step ? step : 0;
}

}  // namespace

LineageFile::LineageFile(const std::string& path, std::int64_t step)
    : lines_(path, kLineage, [last = last_step_to_keep(path, step)](const std::string& line) {
        return parse_lineage(line).step <= last;
      }) {}

void LineageFile::append(const LineageStep& step) { lines_.append(to_json(step)); }

}  // namespace shoal::train
