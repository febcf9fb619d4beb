#pragma once

#include <map>
#include <string>
#include <vector>

#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/same_tensor.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format {

/// Returns the model of a checkpoint, which stands under "model" in its metadata (model::to_json).
/// Throws Error(data).
model::ModelSpec spec_of(const Reader& reader);

/// The tensors of a checkpoint's model, named `model.<canonical name>`, as another program has
/// them.
class ExportedTensors {
 public:
  /// `all` covers every parameter. Throws Error(data) when the checkpoint has no such tensor, or
  /// one of another shape.
  ExportedTensors(Reader& from, const model::ModelSpec& spec, std::vector<SameTensor> all);

  const std::vector<SameTensor>& all() const { return all_; }
  ElementType type(const SameTensor& tensor) const { return ours_.at(tensor.ours)->type; }
  /// Reads a tensor, one of all(). The memory is valid until the next call.
  const std::vector<char>& read(const SameTensor& tensor);

 private:
  Reader& from_;
  std::vector<SameTensor> all_;
  std::map<std::string, const LogicalTensor*> ours_;
  // Queries, keys and values come from one tensor: the last one read is kept.
  std::string last_name_;
  std::vector<char> last_, theirs_;
};

}  // namespace shoal::checkpoint::format
