#include "shoal/train/config/link_costs.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file.h"

namespace shoal::train {
namespace {

using collective::CostModel;

[[noreturn]] void reject(const std::string& file, const toml::node& at, const std::string& what) {
  throw Error(ErrorKind::kConfig, "link_costs",
              fmt::format("{}:{}: {}", file, at.source().begin.line, what));
}

/// A key of the section, and which number it is: seconds, or bytes a second of which the seconds of
/// a byte are kept.
struct Number {
  const char* key;
  double* value;
  bool rate;
};

std::vector<Number> numbers(CostModel& costs) {
  return {{"inside_latency_s", &costs.inside.alpha, false},
          {"inside_bandwidth", &costs.inside.beta, true},
          {"between_latency_s", &costs.between.alpha, false},
          {"between_bandwidth", &costs.between.beta, true},
          {"message_s", &costs.overhead, false},
          {"fold_bandwidth", &costs.fold, true}};
}

CostModel read(const toml::table& section, const std::string& file) {
  CostModel costs;
  const auto known = numbers(costs);
  for (const auto& [name, node] : section) {
    const std::string_view key = name.str();
    const auto number =
        std::find_if(known.begin(), known.end(), [&](const Number& n) { return key == n.key; });
    // Keys that are left out keep the defaults of the cost model.
    if (number == known.end()) reject(file, node, fmt::format("tcp.{}: no such key", key));
    const double value = node.is_number() ? *node.value<double>() : NAN;
    if (!std::isfinite(value) || value < 0 || (number->rate && value == 0)) {
      reject(file, node,
             fmt::format("tcp.{}: must be a {} number", number->key,
                         number->rate ? "positive" : "non-negative"));
    }
    // Files state bandwidths; the cost model counts seconds a byte.
    *number->value = number->rate ? 1 / value : value;
  }
  return costs;
}

}  // namespace

std::optional<CostModel> parse_link_costs(std::string_view text, const std::string& file) {
  try {
    const toml::table table = toml::parse(text, file);
    const toml::node* section = table.get("tcp");
    if (!section) return std::nullopt;
    if (!section->is_table()) reject(file, *section, "tcp: must be a section");
    return read(*section->as_table(), file);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorKind::kConfig, "link_costs",
                fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  }
}

CostModel read_link_costs(const std::string& file) {
  const auto text = read_text(file);
  if (!text) {
    throw Error(ErrorKind::kInputMissing, "link_costs", fmt::format("{}: no such file", file))
        .hint("shoal plan calibrate writes one");
  }
  const auto costs = parse_link_costs(*text, file);
  if (!costs) {
    throw Error(ErrorKind::kConfig, "link_costs", fmt::format("{}: has no section [tcp]", file))
        .hint("shoal plan calibrate writes it when it measures several ranks");
  }
  return *costs;
}

std::string link_costs_section(const CostModel& costs) {
  CostModel copy = costs;
  std::string text = "[tcp]\n";
  for (const Number& number : numbers(copy))
    text += fmt::format("{} = {}\n", number.key, number.rate ? 1 / *number.value : *number.value);
  return text;
}

}  // namespace shoal::train
