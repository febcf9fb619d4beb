#pragma once

#include <string>
#include <vector>

#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// One entry of precision.parameters.
struct PrecisionRule {
  std::string pattern;                ///< of a parameter's canonical name; * stands for any text
  Precision type = Precision::kFp32;  ///< not kAuto
};

/// Throws Error(config) for an entry that is no "pattern=type".
std::vector<PrecisionRule> precision_rules(const Job& job);

/// True when some parameters may be kept in `type`; with type = "auto" those are fp32 or bf16.
bool may_use(const Job& job, Precision type);

/// Keys of [precision] against each other and against the optimizer. Throws Error(config).
void validate_precision(const Job& job);

}  // namespace shoal::train
