#include "shoal/checkpoint/format/same_tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace shoal::checkpoint::format {

void move_rows(const SameTensor& same, std::size_t element, char* ours, char* theirs,
               bool to_ours) {
  const auto rows = static_cast<std::int64_t>(same.rows.size());
  const std::int64_t columns = count_of(same.their_shape) / std::max<std::int64_t>(rows, 1);
  const auto move = [&](char* mine, char* other, std::size_t bytes) {
    to_ours ? std::memcpy(mine, other, bytes) : std::memcpy(other, mine, bytes);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    char* mine = ours + same.rows[row] * columns * element;
    if (!same.transposed) {
      move(mine, theirs + row * columns * element, columns * element);
      continue;
    }
    for (std::int64_t column = 0; column < columns; ++column)
      move(mine + column * element, theirs + (column * rows + row) * element, element);
  }
}

std::vector<std::int64_t> row_range(std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

std::vector<std::int64_t> fused_rows(const model::ModelSpec& spec, AttentionPart part) {
  const std::int64_t queries = spec.heads / spec.kv_heads;
  // A key-value head has `queries` query heads, one key and one value.
  const std::int64_t group = (queries + 2) * spec.head_size;
  const bool is_query = part == AttentionPart::kQuery;
  const std::int64_t begin =
      is_query ? 0 : (queries + (part == AttentionPart::kValue)) * spec.head_size;
  const std::int64_t count = (is_query ? queries : 1) * spec.head_size;
  std::vector<std::int64_t> rows;
  for (std::int64_t head = 0; head < spec.kv_heads; ++head)
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(head * group + begin + i);
  return rows;
}

void TensorList::part(const std::string& ours, const std::string& theirs,
                      std::vector<std::int64_t> rows, std::int64_t columns, bool transposed) {
  const auto count = static_cast<std::int64_t>(rows.size());
  Shape shape{count};
  if (columns > 0) shape = transposed ? Shape{columns, count} : Shape{count, columns};
  tensors_.push_back({ours, theirs, std::move(shape), transposed, std::move(rows)});
}

void TensorList::add(const std::string& ours, const std::string& theirs, std::int64_t rows,
                     std::int64_t columns, bool transposed) {
  part(ours, theirs, row_range(0, rows), columns, transposed);
}

void TensorList::add(const std::string& ours, const std::string& theirs, const Shape& shape) {
  tensors_.push_back({ours, theirs, shape, false,
                      row_range(0, count_of(shape) / std::max<std::int64_t>(shape.back(), 1))});
}

}  // namespace shoal::checkpoint::format
