#include "shoal/parallel/context/sequence_cut.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include <vector>

#include "shoal/base/check.h"
#include "shoal/mesh/move.h"
#include "shoal/ops/key_ranges.h"

namespace shoal::parallel {

using mesh::Placement;

Placement::Cut cut_of(ContextMethod way) {
  return way == ContextMethod::kRing ? Placement::Cut::kZigzag : Placement::Cut::kEven;
}

at::Tensor columns_of(std::int64_t columns, Placement::Cut cut, int ranks, int rank) {
  if (columns < ranks) {
    throw Error(
        ErrorKind::kConfig, "context parallel",
        fmt::format("cp = {}: a sequence of {} tokens has no column for each rank", ranks, columns))
        .hint(fmt::format("cp may be at most {}", columns));
  }
  std::vector<at::Tensor> parts;
  // The boxes that redistribute() uses too, so that both mean the same columns.
  for (const mesh::Box& box : mesh::boxes_along({columns}, Placement::shard(0, cut), ranks, rank))
    parts.push_back(at::arange(box.begin[0], box.end[0], at::kLong));
  return at::cat(parts);
}

at::Tensor cut_sequence(const at::Tensor& inputs, nn::Context& context, Placement::Cut cut,
                        int ranks, int rank) {
  if (ranks == 1) return inputs;
  SHOAL_USER_CHECK(inputs.dim() == 2, "context parallel",
                   "only sequences are cut, inputs [B, T], not {} dimensions", inputs.dim());
  SHOAL_USER_CHECK(!context.positions.defined() && context.position_begin == 0 &&
                       context.cache == nullptr && !context.sequence.divided(),
                   "context parallel", "only a whole sequence from position 0 on can be cut");
  const std::int64_t columns = inputs.size(1);
  const at::Tensor& labels = context.labels;
  const at::Tensor& documents = context.documents;
  SHOAL_USER_CHECK(!labels.defined() || labels.sizes() == inputs.sizes(), "context parallel",
                   "labels must be [{}, {}] as the inputs", inputs.size(0), columns);
  if (documents.defined()) {
    // Ranges are made for each pair of ranks: here alone the whole row can be checked.
    const ops::TokenPlaces whole{columns, {}, documents};
    ops::key_ranges(whole, whole);
  }
  const at::Tensor own = columns_of(columns, cut, ranks, rank);
  context.sequence = {columns, documents};
  context.positions = own;
  if (labels.defined()) context.labels = labels.index_select(1, own);
  if (documents.defined()) context.documents = documents.index_select(1, own);
  return inputs.index_select(1, own);
}

}  // namespace shoal::parallel
