#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/nn/sequence.h"
#include "shoal/nn/stream.h"

namespace shoal::nn {

class KeyValueCache;
class Replay;
struct RoutedTokens;

/// Collects losses that layers add to the main one (router balance). Each is already scaled; the
/// training step adds them.
class LossSink {
 public:
  void add(at::Tensor loss) { losses_.push_back(std::move(loss)); }
  const std::vector<at::Tensor>& losses() const { return losses_; }
  void clear() { losses_.clear(); }

 private:
  std::vector<at::Tensor> losses_;
};

/// Counts the tokens that chose each expert, by the path of the router: a step sums them over the
/// ranks and moves the routers' biases by them.
class ExpertLoad {
 public:
  /// `counts` [E] int64.
  void add(const std::string& router, const at::Tensor& counts);
  const std::map<std::string, at::Tensor>& counts() const { return counts_; }
  void clear() { counts_.clear(); }

 private:
  std::map<std::string, at::Tensor> counts_;
};

/// Everything that a forward pass must know beyond its input. It is passed explicitly and saved for
/// recomputation: there is no thread-local state. It is a function of global indices, so that every
/// stage of a pipeline makes its own.
struct Context {
  /// Key of (seed, step): random numbers are functions of it, the layer's name, and global indices.
  Key key;
  std::int64_t micro_batch = 0;  ///< index within the step on this rank
  bool training = true;
  /// [B] int64, the global index of every row within the step; undefined: 0 .. B - 1.
  at::Tensor samples;
  std::int64_t position_begin = 0;  ///< position of column 0 when `positions` is undefined
  /// [T] int64, global positions of this slice's columns (context parallelism); undefined:
  /// contiguous.
  at::Tensor positions;
  /// [B, T] int32, the document of each token: attention stays inside; undefined: one document.
  at::Tensor documents;
  /// [B, T] int64 (or [B], or [B, outputs] for regression); -100 is ignored. When defined, the head
  /// returns the loss.
  at::Tensor labels;
  /// The head multiplies its summed loss by it: 1 / N with N the global count of valid labels in
  /// the step.
  double loss_scale = 1;
  /// The head keeps no gradient of its weight from forward to backward, and computes its logits a
  /// second time instead (ops::LossBlocks), where it has more rows than it computes at once. A
  /// pipeline sets it where that is better (plan::recomputes_logits).
  bool recompute_logits = false;
  /// The whole sequence, where this rank has some of its columns; default: it has all.
  Sequence sequence;
  /// The rows of the residual stream that this rank holds; default: all.
  Stream stream;
  /// Keys and values of the positions before `position_begin`, during generation.
  KeyValueCache* cache = nullptr;
  LossSink* extra_losses = nullptr;
  ExpertLoad* expert_load = nullptr;
  /// The router's choices for the tokens that come to a module of experts.
  const RoutedTokens* routed = nullptr;
  /// Keeps the results of matmuls, or returns those that the first pass kept.
  Replay* replay = nullptr;
  /// This pass repeats an earlier one within backward; the module's backward pass follows at once.
  bool recomputing = false;
};

}  // namespace shoal::nn
