#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/reader.h"

namespace shoal::checkpoint::format {

/// Describes how one logical tensor differs between two checkpoints.
struct Difference {
  enum class Kind { kOnlyFirst, kOnlySecond, kForm, kValues };

  std::string name;
  Kind kind = Kind::kValues;
  std::string first{}, second{};  ///< type and shape on each side; empty where it does not exist
  std::int64_t elements = 0;      ///< kValues: how many differ in at least one bit
  std::int64_t count = 0;         ///< kValues: of how many
  std::optional<double> largest_apart;  ///< kValues: the largest |a - b|, for f32, f64 and bf16;
                                        ///< infinite where one is not a number
};

/// Lists the differences by name. Tensors whose checksums of values are equal are not read; the
/// others are, and verified. How either is sharded plays no part.
std::vector<Difference> compare(Reader& first, Reader& second);

}  // namespace shoal::checkpoint::format
