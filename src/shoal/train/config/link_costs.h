#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/collective/algorithm/cost_model.h"

namespace shoal::train {

/// What messages over TCP cost, as a cluster file (`shoal plan calibrate`) has it in its section
/// [tcp]: latency_s and bandwidth (bytes/s) of `inside_` and `between_` hosts, `message_s` that a
/// rank is busy with any message, `fold_bandwidth`. What it leaves out is CostModel's. The rest of
/// the file is not looked at; nothing where it has no such section. Throws Error(config) that names
/// file, line, key and rule.
std::optional<collective::CostModel> parse_link_costs(std::string_view text,
                                                      const std::string& file);

/// Of a file that must have the section: Error(config) without it, Error(input_missing) without the
/// file.
collective::CostModel read_link_costs(const std::string& file);

/// The section: it parses to the same costs.
std::string link_costs_section(const collective::CostModel& costs);

}  // namespace shoal::train
