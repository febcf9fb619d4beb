#pragma once

#include <cstdint>
#include <vector>

namespace shoal::plan {

// A pipeline divides a model's units (embedding, blocks, head) among its stages: this is the number
// of units of every stage, in the order of the data path. A stage has at least one unit.

/// Divides `units` by number: stages differ by one unit at most, and earlier ones are never
/// smaller. Throws Error(usage) when there are more stages than units.
std::vector<std::int64_t> even_stages(std::int64_t units, int stages);

/// Divides units by what each costs (any unit, not negative), so that the most expensive stage,
/// for which all others wait, costs as little as possible. Among such divisions it takes the one
/// whose other stages are most even (least sum of squares), and of equal ones that in which earlier
/// stages have more units. Throws Error(usage) as above, and for a cost that is negative or not
/// finite.
std::vector<std::int64_t> balanced_stages(const std::vector<double>& unit_costs, int stages);

/// Throws Error(usage) that names the rule unless `units_of_stage` divides `units` units among
/// `stages` stages.
void check_stages(const std::vector<std::int64_t>& units_of_stage, std::int64_t units, int stages);

}  // namespace shoal::plan
