#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// Computes the cross-entropy of one row of logits: returns -log softmax(row)[label]. With
/// `gradient` the row becomes (softmax - onehot) * scale.
double cross_entropy_row(std::int64_t width, float* row, std::int64_t label, float scale,
                         bool gradient);

}  // namespace shoal::ops::kernels
