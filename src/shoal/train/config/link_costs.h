#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/collective/algorithm/cost_model.h"

namespace shoal::train {

/// Reads the costs of messages over TCP from section [tcp] of a cluster file, which `shoal plan
/// calibrate` writes: latency_s and bandwidth (bytes/s) `inside_` and `between_` hosts, `message_s`
/// for which a message keeps a rank busy, and `fold_bandwidth`. Keys that are missing keep the
/// defaults of CostModel, other sections are ignored. Returns nothing when there is no such
/// section. Throws Error(config) that names file, line, key and rule.
std::optional<collective::CostModel> parse_link_costs(std::string_view text,
                                                      const std::string& file);

/// Reads a file that must have the section. Throws Error(config) without it, Error(input_missing)
/// without the file.
collective::CostModel read_link_costs(const std::string& file);

/// Writes the section; it parses to the same costs.
std::string link_costs_section(const collective::CostModel& costs);

}  // namespace shoal::train
