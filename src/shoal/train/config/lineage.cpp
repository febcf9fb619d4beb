#include "shoal/train/config/lineage.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shoal/base/error.h"

namespace shoal::train {
namespace {

constexpr const char* kLineage = "lineage";

}  // namespace

std::string to_json(const LineageStep& step) {
  const bool is_round = step.steps > 0;
  std::string members;
  for (const LineageMember& member : step.members) {
    members += fmt::format(R"({}{{"id": "{}", "first_sample": {}, "samples": {}, "threads": {})",
                           members.empty() ? "" : ", ", member.id, member.first_sample,
                           member.samples, member.threads);
    if (is_round) members += fmt::format(R"(, "is_new": {})", member.is_new);
    members += "}";
  }
  return fmt::format(
      R"({{"step": {}, {}"epoch": {}, "members": [{}], "instruction_set": "{}", "before": "{}", )"
      R"("state": "{}"}})",
      step.step, is_round ? fmt::format(R"("steps": {}, )", step.steps) : "", step.epoch, members,
      step.instruction_set, step.before, step.state);
}

LineageStep parse_lineage(const std::string& line) {
  try {
    const auto object = nlohmann::json::parse(line);
    LineageStep step{.step = object.at("step"),
                     .steps = object.value("steps", std::int64_t{0}),
                     .epoch = object.at("epoch"),
                     .members = {},
                     .instruction_set = object.at("instruction_set"),
                     .before = object.at("before"),
                     .state = object.at("state")};
    for (const auto& member : object.at("members")) {
      step.members.push_back({.id = member.at("id"),
                              .first_sample = member.at("first_sample"),
                              .samples = member.at("samples"),
                              .threads = member.at("threads"),
                              .is_new = member.value("is_new", false)});
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
    if (!steps.empty() && step.behind() != steps.back().step) {
      throw Error(ErrorKind::kData, kLineage,
                  fmt::format("step {} follows step {}", step.behind() + 1, steps.back().step));
    }
    if (!steps.empty() && step.before != steps.back().state) {
      throw Error(ErrorKind::kData, kLineage,
                  fmt::format("step {} goes on from the state {}, and step {} has led to {}: they "
                              "are of two branches of a group",
                              step.step, step.before, steps.back().step, steps.back().state));
    }
    steps.push_back(std::move(step));
    return true;
  });
  return steps;
}

namespace {

/// Returns the last step of which the file keeps the line, where the run goes on behind `step`.
std::int64_t last_step_to_keep(const std::string& path, std::int64_t step,
                               const std::string& state) {
  for (const LineageStep& line : read_lineage(path))
    if (line.step == step) return line.state == state ? step : 0;
  return 0;
}

}  // namespace

LineageFile::LineageFile(const std::string& path, std::int64_t step, const std::string& state)
    : lines_(path, kLineage,
             [last = last_step_to_keep(path, step, state)](const std::string& line) {
               return parse_lineage(line).step <= last;
             }) {}

void LineageFile::append(const LineageStep& step) { lines_.append(to_json(step)); }

}  // namespace shoal::train
