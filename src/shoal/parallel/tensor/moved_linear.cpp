#include "shoal/parallel/tensor/moved_linear.h"

#include "shoal/nn/replay.h"
#include "shoal/ops/linear.h"
#include "shoal/parallel/redistribute.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {
namespace {

mesh::Placement placement_of(Boundary boundary, const nn::Stream& stream) {
  switch (boundary) {
    case Boundary::kStream:
      // During generation every rank has all rows.
      return stream.divided() ? mesh::Placement::shard(stream.dim) : mesh::Placement::replicate();
    case Boundary::kFeatures:
      return mesh::Placement::shard(-1);
    case Boundary::kPartial:
      return mesh::Placement::partial();
    case Boundary::kReplicate:
      break;
  }
  return mesh::Placement::replicate();
}

}  // namespace

MovedLinear::MovedLinear(const nn::Linear& original, comm::Group ranks, const PlacedModule& placed)
    : Linear(nn::Replacement(), original),
      ranks_(std::move(ranks)),
      input_(placed.input),
      needs_(placed.needs),
      computes_(placed.computes),
      output_(placed.output),
      own_samples_(placed.own_samples) {}

at::Tensor MovedLinear::moved(const at::Tensor& x, Boundary from, Boundary to,
                              std::int64_t features, const nn::Context& context) const {
  const nn::Stream& stream = context.stream;
  if (from == to) return x;
  check_divided(stream);
  // Attention on whole samples needs no other rank. Documents are those of all samples.
  if (own_samples_ && stream.divided() && stream.dim == 0 && !context.documents.defined()) return x;
  std::vector<std::int64_t> whole = x.sizes().vec();
  if (from == Boundary::kStream && stream.divided())
    whole.at(static_cast<std::size_t>(stream.dim)) = stream.whole;
  whole.back() = features;
  return redistribute(x, ranks_, placement_of(from, stream), placement_of(to, stream), whole);
}

at::Tensor MovedLinear::onto(const at::Tensor& residual, const at::Tensor& x,
                             const nn::Context& context) const {
  const std::vector<std::int64_t>& shape = weight()->global_shape();  // [out, in]
  const ops::Weight bias_weight = bias() ? bias()->weight() : ops::Weight();
  const at::Tensor read = moved(x, input_, needs_, shape[1], context);
  if (computes_ == Boundary::kPartial) {
    const at::Tensor part = nn::product(context, read, weight()->weight());
    // Behind the sum: on the parts, the bias would be counted once a rank.
    return ops::add_rows(moved(part, computes_, output_, shape[0], context), bias_weight, residual);
  }
  if (computes_ == output_)
    return nn::product(context, read, weight()->weight(), bias_weight, residual);
  const at::Tensor y = moved(nn::product(context, read, weight()->weight(), bias_weight), computes_,
                             output_, shape[0], context);
  return residual.defined() ? residual + y : y;
}

}  // namespace shoal::parallel
