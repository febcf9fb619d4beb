#include "shoal/parallel/recipe/print.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace shoal::parallel {
namespace {

std::string moves_of(const PlacedModule& one) {
  switch (one.module.kind) {
    case ModuleKind::kEmbedding:
      return one.computes == Boundary::kPartial ? "output: reduce-scatter" : "tokens of own rows";
    case ModuleKind::kOutput:
      return one.needs == Boundary::kReplicate ? "loss: two numbers a row" : "loss of own rows";
    case ModuleKind::kHeadNorm:
    case ModuleKind::kPositions:
      return "";
    case ModuleKind::kNorm:
    case ModuleKind::kLinear:
      break;
  }
  std::string text;
  if (one.input != one.needs) text = "input: " + movement(one.input, one.needs);
  if (one.computes != one.output) {
    text += text.empty() ? "" : "; ";
    text += "output: " + movement(one.computes, one.output);
  }
  if (one.own_samples) text += ", nothing where samples are divided";
  return text;
}

/// The rule behind the pattern, and the comment.
struct Line {
  std::string items;
  std::string comment;
  bool operator==(const Line&) const = default;
};

Line line_of(const PlacedModule& one) {
  Rule rule{"", one.parameters, {}, {}};
  const ModuleKind kind = one.module.kind;
  // Where attention chooses its way by the batch, no rule could say it.
  if (kind == ModuleKind::kLinear && !one.own_samples) {
    if (one.input != one.needs) rule.input = one.input;
    rule.output = one.output;
  }
  if (kind == ModuleKind::kNorm || kind == ModuleKind::kEmbedding) {
    rule.output = one.output;
  }
  return {text_of(rule), moves_of(one)};
}

/// "blocks.12.mlp.up" to "12"; empty outside blocks.
std::string block_of(const std::string& path) {
  if (!path.starts_with("blocks.")) return "";
  return path.substr(7, path.find('.', 7) - 7);
}

}  // namespace

std::string movement(Boundary from, Boundary to) {
  if (from == to) return "";
  if (from == Boundary::kPartial)
    return to == Boundary::kReplicate ? "all-reduce" : "reduce-scatter";
  if (to == Boundary::kReplicate) return "all-gather";
  return from == Boundary::kReplicate ? "each its part" : "all-to-all";
}

std::string print(const std::vector<PlacedModule>& modules) {
  // Lines of one module in all blocks, to see whether they are alike.
  std::map<std::string, std::set<std::pair<std::string, std::string>>> kinds;
  const auto pattern_of = [](const std::string& path) {
    const std::string block = block_of(path);
    return block.empty() ? path : "blocks.*" + path.substr(7 + block.size());
  };
  for (const PlacedModule& one : modules) {
    const Line line = line_of(one);
    kinds[pattern_of(one.module.path)].emplace(line.items, line.comment);
  }
  std::string text = "layouts = [\n";
  std::set<std::string> printed;
  for (const PlacedModule& one : modules) {
    const std::string pattern = pattern_of(one.module.path);
    const bool alike = kinds.at(pattern).size() == 1;
    if (alike && !printed.insert(pattern).second) continue;
    const Line line = line_of(one);
    const std::string rule =
        fmt::format("  \"{}{}\",", alike ? pattern : one.module.path, line.items);
    text += line.comment.empty() ? rule + "\n" : fmt::format("{:<76}  # {}\n", rule, line.comment);
  }
  return text + "]\n";
}

}  // namespace shoal::parallel
