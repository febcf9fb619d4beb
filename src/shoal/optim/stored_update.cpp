#include "shoal/optim/stored_update.h"

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/ops/narrow_kernels.h"

namespace shoal::optim {
namespace {

namespace kernels = ops::kernels;

constexpr std::size_t kBlock = kSumBlock;  // elements: five blocks of floats are 20 KiB

/// One array of a block as float: itself where it is stored so, else a buffer beside it.
class Block {
 public:
  /// Elements [0, count) of `array` can be read at data().
  void open(const Stored& array, std::size_t count) {
    array_ = array;
    count_ = count;
    if (direct()) return;
    kernels::widen(array.type, array.data, count, buffer_);
  }
  float* data() { return direct() ? static_cast<float*>(array_.data) : buffer_; }

  /// Stores the values at data() in the array. Each array rounds with a stream of its own: with one
  /// stream for all, the rounding errors of parameter and moments would be correlated.
  void close(const RoundingDraws& draws, const char* purpose) {
    if (direct()) return;
    kernels::narrow_stochastically(draws.key.child(purpose).value(), draws.first, buffer_, count_,
                                   static_cast<std::uint16_t*>(array_.data));
  }

 private:
  bool direct() const { return array_.type == ElementType::kF32; }

  Stored array_;
  std::size_t count_ = 0;
  alignas(64) float buffer_[kBlock];
};

float* floats(const Stored& array) { return static_cast<float*>(array.data); }
bool is_float(const Stored& array) { return array.type == ElementType::kF32; }

bool running(const Stored& array) {
  return array.data != nullptr &&
         (array.type == ElementType::kF32 || array.type == ElementType::kBF16);
}

}  // namespace

Stored Stored::from(std::size_t element) const {
  return {data ? static_cast<char*>(data) + element * size_of(type) : nullptr, type};
}

void adamw_update(const StoredAdamW& a, std::size_t count, const AdamWFactors& factors,
                  const RoundingDraws& draws) {
  SHOAL_CHECK(running(a.parameter) && running(a.exp_avg) && running(a.exp_avg_sq),
              "adamw: parameter {}, moments {} and {}", name(a.parameter.type),
              name(a.exp_avg.type), name(a.exp_avg_sq.type));
  // All fp32 and no 16-bit copy: one pass over memory needs no blocks.
  if (is_float(a.parameter) && is_float(a.gradient) && is_float(a.exp_avg) &&
      is_float(a.exp_avg_sq) && !a.copy.data) {
    return adamw_update(floats(a.parameter), floats(a.gradient), floats(a.exp_avg),
                        floats(a.exp_avg_sq), count, factors);
  }
  Block parameter;
  Block gradient;
  Block exp_avg;
  Block exp_avg_sq;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    parameter.open(a.parameter.from(begin), size);
    gradient.open(a.gradient.from(begin), size);
    exp_avg.open(a.exp_avg.from(begin), size);
    exp_avg_sq.open(a.exp_avg_sq.from(begin), size);
    adamw_update(parameter.data(), gradient.data(), exp_avg.data(), exp_avg_sq.data(), size,
                 factors);
    // Draws go by the index within the parameter: ranks that own other parts of it round as one
    // rank would.
    const RoundingDraws here{draws.key, draws.first + begin};
    parameter.close(here, "parameter");
    exp_avg.close(here, "exp_avg");
    exp_avg_sq.close(here, "exp_avg_sq");
    if (a.copy.data) kernels::narrow(a.copy.type, parameter.data(), size, a.copy.from(begin).data);
  }
}

double sum_of_squares(const Stored& values, std::size_t count) {
  if (values.type == ElementType::kF32)
    return sum_of_squares(static_cast<const float*>(values.data), count);
  // Blocks begin at multiples of kSumBlock, where sum_of_squares begins its own: the order of the
  // sum is that of a widened copy.
  Block block;
  double total = 0;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    block.open(values.from(begin), size);
    total += sum_of_squares(block.data(), size);
  }
  return total;
}

}  // namespace shoal::optim
