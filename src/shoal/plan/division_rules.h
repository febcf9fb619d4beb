#pragma once

#include <cstdint>
#include <string>

#include "shoal/model/model_spec.h"
#include "shoal/plan/degrees.h"

namespace shoal::plan {

// The rules by which ranks divide a model, for the planner and the job file alike: a plan that is
// accepted can be run. Each returns what is wrong, to be written behind "cp = 3: ", and an empty
// text where the rule holds.

/// Every context rank has a column of each sequence of `length` tokens; their parts may differ.
std::string context_rule(std::int64_t cp, std::int64_t length);

/// Context ranks that exchange columns for heads get whole key-value heads.
std::string whole_heads_rule(const model::ModelSpec& spec, const Degrees& degrees);

/// The ranks of `ep` hold as many experts each.
std::string experts_rule(const model::ModelSpec& spec, std::int64_t ep);

/// A copy of sharded states is whole: all its experts lie on its own ranks. `copy`: what the copies
/// are.
std::string expert_copy_rule(const Degrees& degrees,
                             const char* copy = "a copy of the sharded states");

/// Every stage of a pipeline has a unit of the model: the embedding, a block, or the head.
std::string stages_rule(std::int64_t units, std::int64_t stages);

}  // namespace shoal::plan
