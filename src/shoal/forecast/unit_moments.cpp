#include "shoal/forecast/unit_moments.h"

#include <algorithm>
#include <cmath>

#include "shoal/forecast/memory.h"
#include "shoal/forecast/rank_states.h"

namespace shoal::forecast {
namespace {

/// Rows of logits that the loss computes at once (ops::linear_cross_entropy).
constexpr std::int64_t kLossRows = 1024;
/// Bytes of a token: its input and its label have 64 bits each.
constexpr double kTokenBytes = 16;

/// Returns the workspace of a matmul that packs its operands: ops/gemm_kernels.cpp, blocks of 1536
/// rows, 320 columns, 512 deep.
double packed(double rows, double columns, double depth) {
  return UnitMoments::kElement * (std::min(rows, 1536.0) + std::min(columns, 320.0)) *
         std::min(depth, 512.0);
}

/// Returns the bytes of all micro-batches of a step on one rank.
double data_bytes(const ModelSpec& spec, const Training& training, double rows) {
  const double tokens = rows * static_cast<double>(training.micro_batches());
  return spec.family == Family::kMlp
             ? UnitMoments::kElement * tokens * static_cast<double>(spec.inputs + spec.outputs)
             : kTokenBytes * tokens;
}

}  // namespace

UnitMoments::UnitMoments(const ModelSpec& spec, const Training& training)
    : spec_(spec),
      narrow_(states_of(training).parameter < kElement),
      batch_{training.micro_batch, spec.family == Family::kMlp ? 1 : training.length(spec),
             kElement, std::min(states_of(training).parameter, kElement), training.degrees.tp},
      tensor_(static_cast<double>(training.degrees.tp)),
      data_(data_bytes(spec, training, batch_.rows())),
      keeps_(training.kept) {
  if (keeps_.empty()) keeps_.assign(model::block_count(spec), kept_under(training.recompute));
  for (std::size_t b = 0; b < keeps_.size(); ++b)
    costs_.push_back(model::block_cost(spec, batch_, static_cast<std::int64_t>(b), keeps_[b]));
}

double UnitMoments::vocabulary() const {
  return std::ceil(static_cast<double>(spec_.vocab) / tensor_);
}

// The head holds the logits, which become their own gradient. Beyond `kLossRows` rows it holds one
// block of the logits, and the gradient of the weight, which the forward pass finishes.
std::vector<UnitMoments::Head> UnitMoments::head() const {
  const double h = static_cast<double>(spec_.hidden);
  const double v = vocabulary();
  const double n = rows();
  const double dx = width();
  std::vector<Head> moments;
  if (n <= kLossRows) {
    // All rows at once: in backward the logits' gradient is there, and dx and dW are made of it.
    // With 16-bit weights the fp32 logits and their rounded gradient exist together for a moment
    // before.
    const double logits = kElement * n * v;
    if (narrow_) moments.push_back({logits, rounded(logits), false});
    moments.push_back({rounded(logits), dx + std::max(packed(n, h, v), packed(v, h, n)), true});
    return moments;
  }
  // fp32 logits of a block, and with 16-bit weights their rounded gradient beside them (half as
  // large).
  const double block = kElement * kLossRows * v * (narrow_ ? 1.5 : 1);
  const double dw = kElement * v * h;
  moments.push_back({dw, block + dx + packed(v, h, kLossRows), false});
  moments.push_back({dw, dx, true});
  return moments;
}

double UnitMoments::block_backward(std::int64_t block) const {
  const double ffn = static_cast<double>(spec_.ffn) / tensor_;
  const double wide = kElement * rows() * ffn * (spec_.gated ? 2 : 1);
  const Keep keep = keeps_[static_cast<std::size_t>(block)];
  return wide + width() * (keep == Keep::kEverything ? 1 : 2) + exchanged() +
         packed(ffn, static_cast<double>(spec_.hidden), rows());
}

// The input of each of the four linear layers (a gate shares that of the layer beside it), and the
// gradient of its output.
double UnitMoments::block_factors() const {
  const double h = static_cast<double>(spec_.hidden);
  const double heads = static_cast<double>(spec_.heads * spec_.head_size) / tensor_;
  const double pairs = std::max(static_cast<double>(spec_.kv_heads) / tensor_, 1.0) *
                       static_cast<double>(spec_.head_size);
  const double ffn = static_cast<double>(spec_.ffn) / tensor_;
  const double inputs = h + heads + h + ffn;
  const double gradients = heads + 2 * pairs + h + ffn * (spec_.gated ? 2 : 1) + h;
  return batch_.product_bytes * rows() * (inputs + gradients);
}

double UnitMoments::head_factors() const {
  if (rows() > kLossRows) return 0;
  return batch_.product_bytes * rows() * (static_cast<double>(spec_.hidden) + vocabulary());
}

}  // namespace shoal::forecast
