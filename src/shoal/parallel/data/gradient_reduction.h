#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/nn/module.h"

namespace shoal::parallel {

/// What of one parameter this rank updates and saves: elements [begin, end) of its local tensor,
/// row-major; begin == end: nothing.
struct OwnedRange {
  std::shared_ptr<nn::Parameter> parameter;
  std::int64_t begin = 0, end = 0;
  at::Tensor values;  ///< the memory of the parameter itself; flat, or of its shape where all of it
                      ///< is owned
};

/// How gradients become sums over the ranks that hold the same parameters. Nothing is divided:
/// losses carry 1 / N themselves.
///
/// A parameter without gradient on some ranks counts as zero there; one without gradient on all
/// ranks stays without, so that the optimizer skips it. The model must outlive it and hold its
/// memory already.
class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  /// Before the backward pass of micro-batch `index` of `count`. Gradients accumulate without
  /// communication; in the last one they may leave.
  virtual void begin(std::int64_t index, std::int64_t count) = 0;
  /// After the last backward pass: returns when every gradient is the sum on this rank.
  virtual void finish() = 0;

  /// By parameter of the model, frozen ones included: what this rank owns. Fixed for the lifetime
  /// of this.
  virtual const std::vector<OwnedRange>& owned() const = 0;
  /// After `finish`, for the trained ones of `owned` in their order: the gradient of the range,
  /// contiguous; undefined where no rank has one.
  virtual std::vector<at::Tensor> gradients() const = 0;
  /// The groups over whose ranks the gradient is cut: a norm is summed over them.
  virtual std::vector<comm::Group> cut_over() const { return {}; }
  /// Around the optimizer's writes to owned ranges: before, no rank reads parameters any more;
  /// after, every rank sees the new ones.
  virtual void begin_update() {}
  virtual void end_update() {}
};

/// The whole of every parameter, for a rank that shares with none.
std::vector<OwnedRange> whole_ranges(const nn::Module& model);
/// The gradients of all trained parameters where they are.
std::vector<at::Tensor> whole_gradients(const std::vector<OwnedRange>& owned);

/// The plain one: after the last backward pass, one all-reduce of everything. What the others are
/// tested against.
std::unique_ptr<GradientReduction> reduce_after_backward(nn::Module& model, comm::Group group);

struct DataParallelOptions {
  std::size_t bucket_bytes = 25 << 20;  ///< of a flat bucket, where gradients travel in buckets
  enum class Way { kAuto, kInPlace, kBuckets } way = Way::kAuto;
};

/// Data parallelism (Li et al., "PyTorch Distributed", VLDB 2020): a gradient is reduced during
/// backward as soon as it and all before it in a fixed order are ready. Where ranks see each
/// other's memory it is reduced in place, where autograd left it: announcing it is the whole cost.
/// Elsewhere gradients are written into flat buckets, in the order in which they became ready in
/// the first step, and a full bucket leaves. kAuto: in place if all ranks can.
///
/// Which parameters are used need not be the same on all ranks: what a rank lacks it finds out at
/// `finish`, from a one-byte map with a group of its own. Collective to make. Throws
/// Error(mismatch) that names the parameter when ranks do not start from the same values.
std::unique_ptr<GradientReduction> data_parallel(nn::Module& model, comm::Group group,
                                                 const DataParallelOptions& options = {});

}  // namespace shoal::parallel
