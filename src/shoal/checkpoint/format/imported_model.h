#pragma once

#include <string>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/checkpoint/format/same_tensor.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format {

/// The tensors of a model that another program wrote.
class ForeignTensors {
 public:
  virtual ~ForeignTensors() = default;

  /// Returns the type of what read() returns: f32 unless the tensor is wider. Throws Error(data)
  /// when the tensor is missing or has another shape.
  virtual ElementType type(const SameTensor& tensor) const = 0;
  /// Returns the values of a tensor for which type() did not throw, row-major.
  virtual std::vector<char> read(const SameTensor& tensor) = 0;
  /// Throws Error(data) when there is a tensor that is none of `all` and that a model needs.
  virtual void check_no_others(const std::vector<SameTensor>& all) const = 0;
};

/// Makes a checkpoint `directory`/step-0 of a model whose tensors are `all`. Every tensor is
/// checked before anything is written; one at a time is in memory. Returns the path. Throws
/// Error(data) and Error(output).
std::string write_imported(const model::ModelSpec& spec, const std::vector<SameTensor>& all,
                           ForeignTensors& tensors, const std::string& directory);

/// Turns elements of f16 or bf16 into f32, exactly; `type` becomes f32. Others stay as they are.
void widen_elements(std::vector<char>& values, ElementType& type);

}  // namespace shoal::checkpoint::format
