#pragma once

#include <hwy/targets.h>

#include <cstdint>
#include <string>

namespace shoal {

/// Calls `body(name)` once for each instruction set of Highway that this machine has and that
/// SHOAL_CPU lets it use, as on a processor whose best it is. Not for several threads.
template <class Body>
void on_every_target(Body&& body) {
  hwy::SetSupportedTargetsForTest(0);
  // A lower bit is a better instruction set: those left are what such a processor has. Highway
  // compiles nothing for sets below the least processor.
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left);
    body(std::string(hwy::TargetName(left & -left)));
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace shoal
