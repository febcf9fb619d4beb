#include "shoal/plan/recipe_traffic.h"

#include <initializer_list>

namespace shoal::plan {
namespace {

using model::BlockDivision;
using model::Boundary;
using model::DividedLinear;

/// Returns what a rank of `ranks` sends of a tensor when it gets from one boundary to another.
double sent_share(Boundary from, Boundary to, double ranks) {
  if (from == to || from == Boundary::kReplicate) return 0;
  const double others = (ranks - 1) / ranks;
  if (from == Boundary::kPartial) return to == Boundary::kReplicate ? 2 * others : others;
  return to == Boundary::kReplicate ? others : others / ranks;
}

/// Features of a token, times the share of them, that a rank sends in one forward pass.
struct Sent {
  double again = 0;  ///< also where the pass is repeated from the results of products
  double once = 0;   ///< the repeated pass has the result

  void add(const DividedLinear& layer, double in, double out, double ranks) {
    const double given = out * sent_share(layer.computes, layer.output, ranks);
    again += in * sent_share(layer.input, layer.needs, ranks);
    (layer.sums_alone() ? once : again) += given;
  }
};

}  // namespace

double recipe_elements(const ModelSpec& spec, const Training& training, std::int64_t block,
                       Keep keep) {
  const auto n = static_cast<double>(training.degrees.tp);
  const MicroBatch batch{.samples = training.micro_batch,
                         .tensor_ranks = training.degrees.tp,
                         .division = training.division};
  const BlockDivision division = batch.division_of(block);
  const auto h = static_cast<double>(spec.hidden);
  const auto heads = static_cast<double>(spec.heads * spec.head_size);
  const auto pairs = static_cast<double>(spec.kv_heads * spec.head_size);
  Sent sent;
  // A norm gives the rows of the stream, or gathers them.
  sent.again += h * sent_share(Boundary::kStream, division.qkv.input, n);
  sent.add(division.qkv, h, heads + 2 * pairs, n);
  sent.add(division.out, heads, h, n);
  if (!model::has_experts(spec, block)) {
    const auto width = static_cast<double>(model::dense_width(spec));
    sent.again += h * sent_share(Boundary::kStream, division.up.input, n);
    if (spec.gated) sent.add(division.gate, h, width, n);
    sent.add(division.up, h, width, n);
    sent.add(division.down, width, h, n);
  }
  double passes = 2;
  if (keep == Keep::kInput) passes = 3;
  const double repeated = keep == Keep::kProducts ? sent.again : 0;
  const double tokens = static_cast<double>(training.micro_batch * training.length(spec)) /
                        static_cast<double>(training.degrees.cp);
  return tokens * (passes * (sent.again + sent.once) + repeated);
}

}  // namespace shoal::plan
