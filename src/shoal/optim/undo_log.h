#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/optim/optimizer.h"

namespace shoal::optim {

/// Keeps a copy of everything that an update changes (parameters, masters, moments, counts), so
/// that the update can be taken back to the last bit. The copies are of the memory category
/// optimizer and take as many bytes as the owned parameters and their state. Not thread-safe.
class UndoLog {
 public:
  /// The optimizer must outlive this object.
  explicit UndoLog(Optimizer& optimizer);

  /// Copies the values as they are now, in place of those of the call before.
  void record();
  /// Writes back the values of the last `record`, without autograd noticing.
  void restore();

 private:
  struct Copy {
    at::Tensor original;
    at::Tensor kept;
  };
  void add(const at::Tensor& original);

  Optimizer& optimizer_;
  std::vector<Copy> copies_;
  std::vector<std::int64_t> updates_;
};

}  // namespace shoal::optim
