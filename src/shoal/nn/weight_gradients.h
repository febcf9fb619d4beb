#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "shoal/nn/parameter.h"

namespace shoal::nn {

/// The products for weight gradients that one backward pass has put off (see Parameter::put_off),
/// in the order in which it came to them. Each holds its two factors, the input of a layer and the
/// gradient of its output, or what makes that again. Not thread-safe; parameters must outlive it.
class WeightGradients {
 public:
  void add(Parameter& parameter, std::function<void()> write);
  /// Computes all in order, and frees the factors of each when it is done. A gradient has the bits
  /// that it would have without delay, if the passes of a stage are run in one order.
  void run();
  std::size_t size() const { return products_.size(); }

 private:
  struct Product {
    Parameter* parameter;
    std::function<void()> write;
  };
  std::deque<Product> products_;
};

}  // namespace shoal::nn
