#include "shoal/ops/product_engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "shoal/ops/matmul.h"

namespace shoal::ops {
namespace {

/// A process computes with one engine, as it does with one instruction set.
std::atomic<ProductEngine> engine_in_use{ProductEngine::kShoal};

/// One layer forward and backward: y = x w', dx = dy w, dw = dy' x.
class Layer {
 public:
  double seconds(ProductEngine engine) const {
    const auto begin = Clock::now();
    matmul(y_, x_, w_.t(), false, engine);
    matmul(dx_, y_, w_, false, engine);
    matmul(dw_, y_.t(), x_, false, engine);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  static constexpr std::int64_t kRows = 128;
  static constexpr std::int64_t kWidth = 768;

  at::Tensor x_ = at::full({kRows, kWidth}, 0.5, at::kFloat);
  at::Tensor w_ = at::full({kWidth, kWidth}, 0.125, at::kFloat);
  at::Tensor y_ = at::empty({kRows, kWidth}, at::kFloat);
  at::Tensor dx_ = at::empty({kRows, kWidth}, at::kFloat);
  at::Tensor dw_ = at::empty({kWidth, kWidth}, at::kFloat);
};

}  // namespace

std::string_view name(ProductEngine engine) {
  return engine == ProductEngine::kShoal ? "shoal" : "libtorch";
}

std::optional<ProductEngine> product_engine(std::string_view text) {
  for (const ProductEngine engine : {ProductEngine::kShoal, ProductEngine::kLibTorch})
    if (name(engine) == text) return engine;
  return std::nullopt;
}

ProductEngine product_engine() { return engine_in_use.load(std::memory_order_relaxed); }

void set_product_engine(ProductEngine engine) {
  engine_in_use.store(engine, std::memory_order_relaxed);
}

EngineTimes measure_engines(Duration budget) {
  const Layer layer;
  // The first pass of each touches fresh memory and starts threads.
  layer.seconds(ProductEngine::kShoal);
  layer.seconds(ProductEngine::kLibTorch);
  EngineTimes times{layer.seconds(ProductEngine::kShoal), layer.seconds(ProductEngine::kLibTorch)};
  for (const Deadline deadline = Deadline::in(budget); !deadline.passed();) {
    times.shoal_s = std::min(times.shoal_s, layer.seconds(ProductEngine::kShoal));
    times.libtorch_s = std::min(times.libtorch_s, layer.seconds(ProductEngine::kLibTorch));
  }
  return times;
}

ProductEngine better_engine(const EngineTimes& times) {
  return times.libtorch_s < 0.75 * times.shoal_s ? ProductEngine::kLibTorch : ProductEngine::kShoal;
}

}  // namespace shoal::ops
