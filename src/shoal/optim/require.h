#pragma once

#include <fmt/format.h>

#include "shoal/base/error.h"

namespace shoal::optim {

/// Throws Error(config) in the name of a section of the job file ("optimizer") unless `holds`: the
/// value of `field` breaks `rule`.
inline void require(bool holds, const char* section, const char* field, double value,
                    const char* rule) {
  if (!holds)
    throw Error(ErrorKind::kConfig, section, fmt::format("{}={}: {}", field, value, rule));
}

}  // namespace shoal::optim
