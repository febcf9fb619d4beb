#include "shoal/forecast/product_shapes.h"

#include <algorithm>

#include "shoal/forecast/step_time.h"
#include "shoal/forecast/unit_moments.h"
#include "shoal/forecast/unit_times.h"
#include "shoal/plan/logits_recomputation.h"
#include "shoal/plan/operations.h"

namespace shoal::forecast {
namespace {

using model::Boundary;
using model::DividedLinear;

/// Gathers products: equal shapes become one with all their names.
class Shapes {
 public:
  void add(const std::string& layer, std::int64_t rows, std::int64_t in, std::int64_t out,
           std::int64_t count = 1, bool linear = true) {
    if (rows == 0 || in == 0 || out == 0 || count == 0) return;
    const auto same = std::find_if(shapes_.begin(), shapes_.end(), [&](const ProductShape& shape) {
      return shape.rows == rows && shape.in == in && shape.out == out && shape.linear == linear;
    });
    if (same == shapes_.end()) {
      shapes_.push_back({layer, rows, in, out, count, linear});
      return;
    }
    same->count += count;
    const std::string listed = ", " + same->layers + ",";
    if (listed.find(", " + layer + ",") == std::string::npos) same->layers += ", " + layer;
  }
  std::vector<ProductShape> take() { return std::move(shapes_); }

 private:
  std::vector<ProductShape> shapes_;
};

/// The products of a transformer's blocks and head on a rank.
class RankShapes {
 public:
  RankShapes(const ModelSpec& spec, const Training& training)
      : spec_(spec),
        training_(training),
        batch_(micro_batch(spec, training)),
        tensor_(training.degrees.tp),
        rows_(batch_.samples * batch_.columns),
        own_rows_(std::max<std::int64_t>(1, rows_ / tensor_)) {}

  std::vector<ProductShape> all() {
    for (std::int64_t block = 0; block < spec_.layers; ++block) add_block(block);
    const bool cut = tensor_ > 1 && training_.output_cut();
    const std::int64_t rows = training_.output_cut() ? rows_ : own_rows_;
    const std::int64_t classes = cut ? spec_.vocab / tensor_ : spec_.vocab;
    // The last block of the loss is shorter where its rows do not divide.
    shapes_.add("output", plan::kLossRows, spec_.hidden, classes, rows / plan::kLossRows, false);
    shapes_.add("output", rows % plan::kLossRows, spec_.hidden, classes, 1, false);
    return shapes_.take();
  }

 private:
  void add_linear(const std::string& layer, const DividedLinear& division, std::int64_t in,
                  std::int64_t out) {
    if (!division.weight_cut()) {
      shapes_.add(layer, own_rows_, in, out);
    } else if (division.needs == Boundary::kReplicate) {
      shapes_.add(layer, rows_, in, out / tensor_);
    } else {
      shapes_.add(layer, rows_, in / tensor_, out);
    }
  }

  void add_feed_forward(const std::string& name, std::int64_t rows, std::int64_t features,
                        std::int64_t count, bool linear) {
    if (spec_.gated) shapes_.add(name + "gate", rows, spec_.hidden, features, count, linear);
    shapes_.add(name + "up", rows, spec_.hidden, features, count, linear);
    shapes_.add(name + "down", rows, features, spec_.hidden, count, linear);
  }

  void add_block(std::int64_t block) {
    const model::BlockDivision division = batch_.division_of(block);
    const std::int64_t queries = spec_.heads * spec_.head_size;
    // Ranks that share a key-value head compute it whole.
    const bool by_heads = division.qkv.needs == Boundary::kReplicate;
    const std::int64_t pairs =
        by_heads ? std::max(spec_.kv_heads / tensor_, std::int64_t{1}) * tensor_ : spec_.kv_heads;
    add_linear("qkv", division.qkv, spec_.hidden, queries + 2 * pairs * spec_.head_size);
    add_linear("out", division.out, queries, spec_.hidden);
    if (model::has_experts(spec_, block)) {
      add_mixture();
      return;
    }
    const std::int64_t features = model::dense_width(spec_);
    if (spec_.gated) add_linear("gate", division.gate, spec_.hidden, features);
    add_linear("up", division.up, spec_.hidden, features);
    add_linear("down", division.down, features, spec_.hidden);
  }

  void add_mixture() {
    shapes_.add("router", own_rows_, spec_.hidden, spec_.experts, 1, false);
    const std::int64_t here = spec_.experts / training_.degrees.ep;
    // Rows are spread evenly, and the busiest rank counts.
    const double busiest = training_.degrees.ep > 1 ? training_.expert_imbalance : 1;
    const auto rows = static_cast<std::int64_t>(
                          static_cast<double>(own_rows_ * spec_.experts_per_token) * busiest) /
                      std::max<std::int64_t>(1, here);
    add_feed_forward("expert ", std::max<std::int64_t>(1, rows), spec_.ffn, here, false);
    if (spec_.shared_ffn > 0) add_feed_forward("shared ", own_rows_, spec_.shared_ffn, 1, true);
  }

  const ModelSpec& spec_;
  const Training& training_;
  MicroBatch batch_;
  std::int64_t tensor_;
  std::int64_t rows_;
  std::int64_t own_rows_;  ///< of the residual stream
  Shapes shapes_;
};

}  // namespace

std::vector<ProductShape> product_shapes(const ModelSpec& spec, const Training& training) {
  if (spec.family == Family::kTransformer) return RankShapes(spec, training).all();
  Shapes shapes;
  std::int64_t in = spec.inputs;
  std::int64_t number = 0;
  const auto add = [&](std::int64_t out) {
    shapes.add("layers." + std::to_string(number++), training.micro_batch, in, out);
    in = out;
  };
  for (const std::int64_t width : spec.widths) add(width);
  add(spec.outputs);
  return shapes.take();
}

const std::vector<ProductShape>& calibration_shapes() {
  static const std::vector<ProductShape> shapes{
      {"64 wide", 64, 64, 64},           {"128 wide, qkv", 128, 128, 384},
      {"384 wide, out", 256, 384, 384},  {"384 wide, up", 512, 384, 1536},
      {"768 wide, out", 1024, 768, 768}, {"768 wide, up", 1024, 768, 3072},
      {"768 wide, up", 2048, 768, 3072}};
  return shapes;
}

bool planned_by_kernels(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                        ElementType type) {
  const std::string precision = type == ElementType::kBF16 ? "bf16" : "fp32";
  if (training.precision == precision) return predicts_step_time(spec, training, cluster);
  Training other = training;
  other.precision = precision;
  if (other.states) other.states = plan::precision(precision, training.optimizer)->state;
  return predicts_step_time(spec, other, cluster);
}

std::optional<double> planned_product_s(const Cluster& cluster, const ProductShape& shape,
                                        ProductPass pass, ElementType type, bool by_kernels) {
  if (!by_kernels) return plan::product_s(cluster, type, shape.flops());
  const bool forward = pass == ProductPass::kForward;
  const std::string name = std::string(forward ? "linear" : "linear_backward") +
                           (type == ElementType::kBF16 ? "_bf16" : "");
  if (!shape.linear || !cluster.kernels.contains(name)) return std::nullopt;
  const double seconds = kernel_seconds(
      cluster, name,
      plan::linear_work(static_cast<double>(shape.rows), static_cast<double>(shape.in),
                        static_cast<double>(shape.out)));
  return forward ? seconds : seconds / 2;
}

}  // namespace shoal::forecast
