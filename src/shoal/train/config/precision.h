#pragma once

#include <string>
#include <vector>

#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// One entry of precision.parameters.
struct PrecisionRule {
  std::string pattern;                ///< fits canonical names; * stands for any text
  Precision type = Precision::kFp32;  ///< not kAuto
};

/// Throws Error(config) for an entry that is no "pattern=type".
std::vector<PrecisionRule> precision_rules(const Job& job);

/// Returns true when some parameters may be kept in `type`. With precision.type = "auto" these are
/// fp32 and bf16.
bool may_use(const Job& job, Precision type);

/// Checks the keys of [precision] against each other and against the optimizer. Throws
/// Error(config).
void validate_precision(const Job& job);

}  // namespace shoal::train
