#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/reader.h"

namespace shoal::train {

/// Returns the numbers of an fp32 tensor in the folder of a saved step.
inline std::vector<float> values_in_checkpoint(const std::string& folder, const std::string& name) {
  checkpoint::format::Reader reader(folder);
  const auto* tensor = reader.manifest().find(name);
  EXPECT_NE(tensor, nullptr) << folder;
  if (!tensor) return {};
  const std::vector<char> bytes = reader.read(*tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace shoal::train
