#include "shoal/parallel/recipe/rule.h"

#include <fmt/format.h>

namespace shoal::parallel {

const char* name(Boundary boundary) {
  switch (boundary) {
    case Boundary::kStream:
      return "stream";
    case Boundary::kReplicate:
      return "replicate";
    case Boundary::kFeatures:
      return "shard(-1)";
    case Boundary::kPartial:
      break;
  }
  return "partial";
}

std::string text_of(const Rule& rule) {
  std::string items;
  const auto add = [&](const std::string& what, const std::string& placement) {
    items += fmt::format("{} {} {}", items.empty() ? "" : ",", what, placement);
  };
  if (rule.input) add("input", name(*rule.input));
  // "bias" before "weight" in the map; people say it the other way round.
  for (const char* parameter : {"weight", "bias"}) {
    const auto found = rule.parameters.find(parameter);
    if (found != rule.parameters.end()) add(parameter, found->second.text());
  }
  if (rule.output) add("output", name(*rule.output));
  return fmt::format("{}:{}", rule.module, items);
}

}  // namespace shoal::parallel
