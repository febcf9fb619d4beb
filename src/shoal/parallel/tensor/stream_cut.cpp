#include "shoal/parallel/tensor/stream_cut.h"

#include <c10/core/GradMode.h>

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"
#include "shoal/parallel/redistribute.h"

namespace shoal::parallel {

using mesh::Placement;

void check_divided(const nn::Stream& stream) {
  SHOAL_USER_CHECK(stream.divided() || !c10::GradMode::is_enabled(), "tensor parallel",
                   "the stream must be divided among the ranks where gradients are recorded: set "
                   "Context::stream by cut_stream");
}

nn::Stream cut_stream(std::int64_t samples, std::int64_t columns, int ranks, int rank) {
  if (ranks == 1) return {};
  // Whole samples lie one behind the other: gathers and sums then need no packing.
  const int dim = samples % ranks == 0 ? 0 : 1;
  const std::int64_t whole = dim == 0 ? samples : columns;
  const auto [begin, end] = even_part_of<std::int64_t>(whole, ranks, rank);
  return {.dim = dim, .begin = begin, .count = end - begin, .whole = whole};
}

at::Tensor gather_stream(const at::Tensor& x, const comm::Group& group,
                         const nn::Context& context) {
  const nn::Stream& stream = context.stream;
  check_divided(stream);
  if (!stream.divided()) return x;
  std::vector<std::int64_t> whole = x.sizes().vec();
  whole.at(static_cast<std::size_t>(stream.dim)) = stream.whole;
  return redistribute(x, group, Placement::shard(stream.dim), Placement::replicate(), whole);
}

at::Tensor sum_into_stream(const at::Tensor& x, const comm::Group& group,
                           const nn::Context& context, const at::Tensor& known) {
  const nn::Stream& stream = context.stream;
  check_divided(stream);
  const Placement to = stream.divided() ? Placement::shard(stream.dim) : Placement::replicate();
  return redistribute(x, group, Placement::partial(), to, x.sizes(), known);
}

}  // namespace shoal::parallel
