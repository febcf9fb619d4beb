#pragma once

#include <vector>

#include "shoal/base/element_type.h"

namespace shoal::checkpoint::format {

/// Turns elements of f16 or bf16 into f32, exactly; `type` becomes f32. Others stay as they are.
void widen(std::vector<char>& values, ElementType& type);

/// Converts a number of IEEE 754 half precision; every value, subnormal, infinite and not a number
/// included.
float half_to_float(unsigned short bits);

}  // namespace shoal::checkpoint::format
