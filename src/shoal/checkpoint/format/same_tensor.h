#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shoal/checkpoint/format/box.h"
#include "shoal/model/model_spec.h"

namespace shoal::checkpoint::format {

/// Says how one tensor of another program's model holds the same numbers as a tensor of Shoal's, or
/// as a part of one.
///
/// Both are matrices [rows, columns] here: ours with all dimensions but the last as rows, a vector
/// as a column. Theirs is stored the other way round where `transposed`. Row r of theirs is row
/// `rows[r]` of ours.
struct SameTensor {
  std::string ours;  ///< canonical name
  std::string theirs;
  Shape their_shape;  ///< as stored
  bool transposed = false;
  std::vector<std::int64_t> rows;
};

/// Copies the numbers of `same` from one whole tensor to the other; `to_ours` says which way. An
/// element takes `element` bytes.
void move_rows(const SameTensor& same, std::size_t element, char* ours, char* theirs, bool to_ours);

/// Returns `count` rows from `begin`.
std::vector<std::int64_t> row_range(std::int64_t begin, std::int64_t count);

enum class AttentionPart { kQuery, kKey, kValue };

/// Returns the rows of all heads of one part in our fused matrix (blocks.N.attention.qkv), which
/// are grouped by key-value head: its queries, its key, its value.
std::vector<std::int64_t> fused_rows(const model::ModelSpec& spec, AttentionPart part);

/// Collects the tensors of a model in their order.
class TensorList {
 public:
  /// Some rows of a tensor of ours; a vector where `columns` is 0.
  void part(const std::string& ours, const std::string& theirs, std::vector<std::int64_t> rows,
            std::int64_t columns, bool transposed = false);
  /// The whole of a tensor of ours.
  void add(const std::string& ours, const std::string& theirs, std::int64_t rows,
           std::int64_t columns, bool transposed = false);
  /// The whole of a tensor of ours with more dimensions.
  void add(const std::string& ours, const std::string& theirs, const Shape& shape);
  std::vector<SameTensor> take() { return std::move(tensors_); }

 private:
  std::vector<SameTensor> tensors_;
};

}  // namespace shoal::checkpoint::format
