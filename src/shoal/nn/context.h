#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/base/philox.h"

namespace shoal::nn {

class KeyValueCache;
class Replay;

/// Collects losses that layers add to the main one (router balance). Each is already scaled; the
/// step adds them.
class LossSink {
 public:
  void add(at::Tensor loss) { losses_.push_back(std::move(loss)); }
  const std::vector<at::Tensor>& losses() const { return losses_; }
  void clear() { losses_.clear(); }

 private:
  std::vector<at::Tensor> losses_;
};

/// What a forward pass must know beyond its input. Passed explicitly, saved for recomputation, sent
/// between pipeline stages; there is no thread-local state.
struct Context {
  Key key;  ///< of (seed, step): dropout masks and the like are functions of it, the layer's name,
            ///< and global indices
  std::int64_t micro_batch = 0;  ///< index within the step on this rank
  bool training = true;
  at::Tensor samples;  ///< [B] int64, global sample index of every row within the step; undefined:
                       ///< 0 .. B - 1
  std::int64_t position_begin = 0;  ///< position of column 0 when `positions` is undefined
  at::Tensor positions;  ///< [T] int64, global positions of this slice's columns (context
                         ///< parallelism); undefined: contiguous
  at::Tensor documents;  ///< [B, T] int32, document index per token: attention stays inside;
                         ///< undefined: one document
  at::Tensor labels;  ///< [B, T] int64 (or [B], or [B, outputs] for regression); -100 is ignored.
                      ///< Defined: the head returns the loss
  double loss_scale = 1;  ///< the head's summed loss is multiplied by it: 1 / N with N the global
                          ///< count of valid labels in the step
  KeyValueCache* cache =
      nullptr;  ///< generation: keys and values of the positions before `position_begin`
  LossSink* extra_losses = nullptr;
  Replay* replay = nullptr;  ///< keeps results of matrix products, or has them from the first pass
  bool recomputing = false;  ///< a pass within backward that repeats an earlier one; the backward
                             ///< pass of this module follows at once
};

}  // namespace shoal::nn
