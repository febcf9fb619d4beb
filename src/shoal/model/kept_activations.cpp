#include "shoal/model/kept_activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shoal/base/error.h"
#include "shoal/model/mixture_tensors.h"

namespace shoal::model {
namespace {

constexpr std::array kEveryKeep{Keep::kEverything, Keep::kProducts, Keep::kInput};

BlockCost perceptron_cost(const ModelSpec& spec, const MicroBatch& batch, std::int64_t block,
                          Keep keep) {
  const auto in = static_cast<double>(block == 0 ? spec.inputs : spec.widths[block - 1]);
  const auto out = static_cast<double>(spec.widths[block]);
  const double e = batch.element_bytes;
  const double p = batch.product_bytes;
  const double rows = batch.rows();
  const double input = rows * in * p;
  const double product = rows * out * e;
  // Kept is the input as it came; repeating the layer makes the result and, with 16-bit weights,
  // the rounded copy of the input. A matmul takes 2 FLOPs a weight and row.
  if (keep == Keep::kInput)
    return {rows * in * e, product + (p < e ? input : 0), 2 * rows * in * out, 0};
  return {input + product, 0, 0, 0};
}

/// Heads that a rank has at a boundary, and their rows.
struct HeadPart {
  double rows;
  double heads;
  double kv_heads;

  HeadPart(const ModelSpec& spec, const MicroBatch& batch, Boundary boundary) {
    const auto t = static_cast<double>(batch.tensor_ranks);
    const bool divided = boundary == Boundary::kFeatures;
    rows = boundary == Boundary::kStream ? batch.rows() / t : batch.rows();
    heads = static_cast<double>(spec.heads) / (divided ? t : 1);
    kv_heads = std::max(static_cast<double>(spec.kv_heads) / (divided ? t : 1), 1.0);
  }
};

/// Bytes of the tensors of a transformer's block.
struct BlockTensors {
  double input;
  double statistics;
  double normed;       ///< what the projection to queries, keys and values multiplied
  double qkv;          ///< as attention takes them
  double qkv_product;  ///< as the projection computes them
  double qkv_made;     ///< of `qkv`, what is made again from the product
  double raw;
  double head_statistics;
  double attended;
  double log_sums;
  double sum;
  double summand;   ///< the result of attention's last matmul
  bool adds_again;  ///< `sum` is another tensor than `summand`
  double dropped;
  double feed_forward;  ///< what the layer behind the second norm keeps
  double products;      ///< results of its matmuls
  double repeated;      ///< what it makes again where these were kept
  double rounded;       ///< what the output projection multiplied where that is not `attended`
  double exchanged;     ///< what it multiplied where that came from ranks with other heads

  BlockTensors(const ModelSpec& spec, const MicroBatch& batch, std::int64_t block) {
    // Bytes: n rows, e bytes an activation, p bytes an activation that was rounded for a matmul.
    // What is fp32 whatever the types (statistics, logarithms) has 4.
    const BlockDivision division = batch.division_of(block);
    const double n = batch.rows();
    const double e = batch.element_bytes;
    const double h = static_cast<double>(spec.hidden);
    // Tensor-parallel ranks have their own rows of the stream.
    const auto t = static_cast<double>(batch.tensor_ranks);
    const double own = n / t;
    input = sum = own * h * e;
    // mean and 1 / deviation of each row; RMSNorm has no mean
    statistics = 4 * own * (spec.norm == Norm::kLayer ? 2 : 1);
    dropped = spec.dropout > 0 ? own * h * e : 0;  // the input of dropout: backward does not need
                                                   // it, a repeated forward pass does
    // A layer that moves what it computes has its product again, and not what became of it.
    summand = product_onto_stream(division.out, n * h * e, t, sum);
    adds_again = dropped > 0 || division.out.moves_product();
    add_attention(spec, batch, division);
    if (has_experts(spec, block)) {
      const MixtureTensors tensors(spec, batch);
      feed_forward = tensors.everything();
      products = tensors.products();
      repeated = tensors.rebuilt();
    } else {
      add_feed_forward(spec, batch, division);
    }
  }

  /// Returns the bytes that a layer which ends in the stream has of its result: all rows of it are
  /// `whole`.
  static double product_onto_stream(const DividedLinear& layer, double whole, double ranks,
                                    double own) {
    return layer.moves_product() ? whole / parts_at(layer.computes, ranks) : own;
  }

  void add_attention(const ModelSpec& spec, const MicroBatch& batch,
                     const BlockDivision& division) {
    const double n = batch.rows();
    const double e = batch.element_bytes;
    const double p = batch.product_bytes;
    const auto t = static_cast<double>(batch.tensor_ranks);
    const double head_size = static_cast<double>(spec.head_size);
    const HeadPart at(spec, batch, division.qkv.output);
    normed = n * static_cast<double>(spec.hidden) * p / parts_at(division.qkv.needs, t);
    qkv = at.rows * (at.heads + 2 * at.kv_heads) * head_size * e;
    const double all = static_cast<double>(spec.heads + 2 * spec.kv_heads);
    qkv_product = n * all * head_size * e / parts_at(division.qkv.computes, t);
    // Attention takes another tensor than the matmul's result, or one that was moved. Norms of
    // queries and keys keep what they take too, and one root a head.
    const bool exchanges = batch.context_ranks > 1 && batch.exchanges_heads;
    const bool turned = spec.positions == Positions::kRotary || spec.qk_norm;
    // Ranks that share a key-value head gather it from the parts that they compute.
    const bool shares = division.qkv.output == Boundary::kFeatures &&
                        at.kv_heads * t > static_cast<double>(spec.kv_heads);
    const bool moved = division.qkv.moves_output() || shares;
    raw = spec.qk_norm ? qkv : 0;
    qkv_made = (turned || exchanges || moved ? qkv : 0) + (moved ? raw : 0);
    head_statistics = spec.qk_norm ? 4 * at.rows * (at.heads + at.kv_heads) : 0;
    attended = at.rows * at.heads * head_size * e;
    const HeadPart read(spec, batch, division.out.needs);
    const bool read_elsewhere = division.out.moves_input();
    rounded = p < e || read_elsewhere ? read.rows * read.heads * head_size * p : 0;
    // With exchanged heads a rank attends for other columns than it multiplies with.
    exchanged = exchanges && p == e && !read_elsewhere ? attended : 0;
    // one logarithm a row and head, from which attention's backward makes the probabilities again
    log_sums = 4 * at.rows * at.heads;
  }

  void add_feed_forward(const ModelSpec& spec, const MicroBatch& batch,
                        const BlockDivision& division) {
    const double n = batch.rows();
    const double e = batch.element_bytes;
    const double p = batch.product_bytes;
    const auto t = static_cast<double>(batch.tensor_ranks);
    const double h = static_cast<double>(spec.hidden);
    const auto features = [&](Boundary boundary) {
      return n * static_cast<double>(dense_width(spec)) / parts_at(boundary, t);
    };
    const DividedLinear& up = division.up;
    const DividedLinear& gate = division.gate;
    const DividedLinear& down = division.down;
    // Gate and up read one tensor unless one of them moves what it reads.
    double read = n * h * p / parts_at(up.needs, t);
    if (spec.gated && (up.moves_input() || gate.moves_input()))
      read += n * h * p / parts_at(gate.needs, t);
    const double activated = features(down.needs) * p;
    double wide = features(up.output) * e;
    double wide_products = features(up.computes) * e;
    double moved = up.moves_output() ? wide : 0;
    if (spec.gated) {
      wide += features(gate.output) * e;
      wide_products += features(gate.computes) * e;
      moved += gate.moves_output() ? features(gate.output) * e : 0;
    }
    feed_forward = read + wide + activated;
    // The last product is added to the stream, and is the next block's input; with dropout it is a
    // tensor of its own, and so is a product that moves.
    products = wide_products + product_onto_stream(down, n * h * e, t, dropped);
    repeated = read + activated + moved;
  }

  // Queries, keys and values are saved as attention takes them, and with norms also as the norms
  // take them.
  double everything() const {
    return input + sum + normed + 2 * statistics + qkv + raw + head_statistics + attended +
           rounded + exchanged + log_sums + feed_forward;
  }
};

BlockCost transformer_cost(const ModelSpec& spec, const MicroBatch& batch, std::int64_t block,
                           Keep keep) {
  const bool mixture = has_experts(spec, block);
  const BlockTensors t(spec, batch, block);
  const double n = batch.rows();
  const double h = static_cast<double>(spec.hidden);
  const auto ranks = static_cast<double>(batch.tensor_ranks);
  // However a matrix is divided, a rank computes its part of each product; attention on all rows
  // and heads is computed by every rank.
  const double width = static_cast<double>(spec.heads * spec.head_size) / ranks;
  const double attending = static_cast<double>(spec.heads * spec.head_size) /
                           parts_at(batch.division_of(block).qkv.output, ranks);
  const double attention = 2 * n * static_cast<double>(batch.columns * batch.context_ranks) *
                           attending;  // the causal half of two matmuls
  // Norms, activations and dropout have no matmul: about ten operations for each element that they
  // write.
  const double pointwise = 10 * (t.everything() - t.qkv) / batch.element_bytes;
  // Behind attention: the output projection's operand, the second norm and what follows it.
  const double passed = t.rounded + t.exchanged + t.sum + t.statistics + t.feed_forward;
  switch (keep) {
    case Keep::kEverything:
      return {t.everything(), 0, 0, passed};
    // Kept are the results of matmuls and what the block adds to; the rest follows from them
    // without another matmul but attention's two.
    case Keep::kProducts:
      return {t.input + t.qkv_product + t.summand + t.products,
              t.qkv_made + t.head_statistics + t.normed + 2 * t.statistics + t.attended +
                  t.rounded + t.exchanged + t.log_sums + t.repeated + (t.adds_again ? t.sum : 0),
              attention + pointwise, t.rounded + t.exchanged + t.statistics + t.repeated};
    case Keep::kInput:
      break;
  }
  const double qkv = static_cast<double>((spec.heads + 2 * spec.kv_heads) * spec.head_size) / ranks;
  // Each row visits some experts, and the shared ones.
  const std::int64_t visited = spec.experts_per_token * spec.ffn + spec.shared_ffn;
  const double ffn = static_cast<double>(mixture ? visited : dense_width(spec)) / ranks;
  // all products of the block: 2 FLOPs a weight and row
  const double products = 2 * n * h * (qkv + width + ffn * (spec.gated ? 3 : 2));
  return {t.input, t.everything() - t.input, attention + pointwise + products, passed};
}

/// A choice for all blocks, with the bytes that it keeps and the FLOPs that it computes twice.
struct Choice {
  double kept = 0;
  double flops = 0;
  std::vector<Keep> keeps;
};

/// Removes the choices for which another one has no more bytes and no more FLOPs.
void keep_best(std::vector<Choice>& choices) {
  // Sorted by bytes, a choice is worth keeping only if it has fewer FLOPs than all before it.
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.kept != b.kept ? a.kept < b.kept : a.flops < b.flops;
  });
  std::vector<Choice> best;
  for (Choice& choice : choices)
    if (best.empty() || choice.flops < best.back().flops) best.push_back(std::move(choice));
  choices = std::move(best);
}

/// Returns the cheapest choice within `budget`. Block by block it keeps the frontier of bytes and
/// FLOPs, so that the result is exact.
std::vector<Keep> within(const ModelSpec& spec, const MicroBatch& batch, double budget) {
  // Dynamic programming over blocks: of all choices so far only those that no other beats in both
  // bytes and FLOPs can lead to the best.
  std::vector<Choice> frontier(1);
  for (std::int64_t b = 0; b < block_count(spec); ++b) {
    std::vector<Choice> next;
    for (const Keep keep : kEveryKeep) {
      const BlockCost cost = block_cost(spec, batch, b, keep);
      for (const Choice& choice : frontier) {
        // The worst moment of block b: everything kept up to it, and what it rebuilds. Backward has
        // freed the blocks behind it.
        if (choice.kept + cost.kept + cost.rebuilt > budget) continue;
        Choice longer{choice.kept + cost.kept, choice.flops + cost.flops, choice.keeps};
        longer.keeps.push_back(keep);
        next.push_back(std::move(longer));
      }
    }
    keep_best(next);
    frontier = std::move(next);
  }
  // On the frontier, more bytes mean fewer FLOPs.
  if (!frontier.empty()) return frontier.back().keeps;
  const double least =
      blocks_bytes(spec, batch, std::vector<Keep>(block_count(spec), Keep::kInput));
  throw Error(
      ErrorKind::kConfig, "activation_checkpoint",
      fmt::format(
          "a budget of {:.3g} MB: the blocks need {:.3g} MB even when each keeps its input alone",
          budget / 1e6, least / 1e6))
      .hint("a larger activation_checkpoint.budget_mb or a smaller training.micro_batch");
}

}  // namespace

BlockDivision MicroBatch::division_of(std::int64_t block) const {
  BlockDivision own =
      division ? division->blocks[static_cast<std::size_t>(block)] : BlockDivision();
  if (own.own_samples && samples % tensor_ranks == 0)
    own.qkv.output = own.out.input = Boundary::kStream;
  return own;
}

MicroBatch MicroBatch::at_heads(Boundary boundary) const {
  MicroBatch part = *this;
  if (boundary == Boundary::kFeatures) return part;
  // Ranks that divide the samples have whole ones.
  if (boundary == Boundary::kStream) part.samples /= tensor_ranks;
  part.tensor_ranks = 1;
  return part;
}

std::int64_t block_count(const ModelSpec& spec) {
  return spec.family == Family::kMlp ? static_cast<std::int64_t>(spec.widths.size()) : spec.layers;
}

BlockCost block_cost(const ModelSpec& spec, const MicroBatch& batch, std::int64_t block,
                     Keep keep) {
  return spec.family == Family::kMlp ? perceptron_cost(spec, batch, block, keep)
                                     : transformer_cost(spec, batch, block, keep);
}

std::vector<Keep> kept_by_block(const ModelSpec& spec, const MicroBatch& batch,
                                const RecomputePolicy& policy) {
  using Mode = RecomputePolicy::Mode;
  if (policy.mode == Mode::kBudget) return within(spec, batch, policy.budget_bytes);
  Keep uniform = Keep::kEverything;
  if (policy.mode == Mode::kFull) uniform = Keep::kInput;
  if (policy.mode == Mode::kSelective) uniform = Keep::kProducts;
  std::vector<Keep> kept(block_count(spec), uniform);
  if (policy.mode == Mode::kEveryK) {
    // blocks k, 2k, 3k ..., counted from 1
    for (std::size_t b = policy.every - 1; b < kept.size(); b += policy.every)
      kept[b] = Keep::kInput;
  }
  return kept;
}

double blocks_bytes(const ModelSpec& spec, const MicroBatch& batch,
                    const std::vector<Keep>& keeps) {
  double kept = 0;
  double most = 0;
  for (std::size_t b = 0; b < keeps.size(); ++b) {
    const BlockCost cost = block_cost(spec, batch, static_cast<std::int64_t>(b), keeps[b]);
    kept += cost.kept;
    most = std::max(most, kept + cost.rebuilt);
  }
  return most;
}

}  // namespace shoal::model
