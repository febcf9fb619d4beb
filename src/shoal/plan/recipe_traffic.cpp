#include "shoal/plan/recipe_traffic.h"

#include "shoal/plan/collective_cost.h"

namespace shoal::plan {
namespace {

using model::BlockDivision;
using model::Boundary;
using model::DividedLinear;

/// The ranks of tp.
struct Ranks {
  std::int64_t count;
  bool share_memory;  ///< what one cut has of another is copied from where it lies

  /// Returns what a rank sends of a tensor when it gets from one boundary to another.
  double sent_share(Boundary from, Boundary to) const {
    if (from == to || from == Boundary::kReplicate) return 0;
    const double others = exchanged_share(count);
    if (from == Boundary::kPartial) return to == Boundary::kReplicate ? 2 * others : others;
    if (to == Boundary::kReplicate) return others;
    return share_memory ? 0 : others / static_cast<double>(count);
  }
};

/// Features of a token, times the share of them, that a rank sends in one forward pass.
struct Sent {
  double again = 0;  ///< also where the pass is repeated from the results of products
  double once = 0;   ///< the repeated pass has the result

  void add(const DividedLinear& layer, double in, double out, const Ranks& ranks) {
    const double given = out * ranks.sent_share(layer.computes, layer.output);
    again += in * ranks.sent_share(layer.input, layer.needs);
    (layer.sums_alone() ? once : again) += given;
  }
};

}  // namespace

double recipe_elements(const ModelSpec& spec, const Training& training, std::int64_t block,
                       Keep keep, bool share_memory) {
  const Ranks n{training.degrees.tp, share_memory};
  const BlockDivision division = training.division_of(block);
  const auto h = static_cast<double>(spec.hidden);
  const auto heads = static_cast<double>(spec.heads * spec.head_size);
  const auto pairs = static_cast<double>(spec.kv_heads * spec.head_size);
  Sent sent;
  // A norm gives the rows of the stream, or gathers them.
  sent.again += h * n.sent_share(Boundary::kStream, division.qkv.input);
  sent.add(division.qkv, h, heads + 2 * pairs, n);
  sent.add(division.out, heads, h, n);
  if (!model::has_experts(spec, block)) {
    const auto width = static_cast<double>(model::dense_width(spec));
    sent.again += h * n.sent_share(Boundary::kStream, division.up.input);
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
