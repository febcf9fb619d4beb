#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/mesh/mesh.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/ownership.h"

namespace shoal::parallel {

/// The part of one parameter that this rank updates and saves: elements [begin, end) of its local
/// tensor, row-major; begin == end: nothing.
struct OwnedRange {
  std::shared_ptr<nn::Parameter> parameter;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// The parameter's own memory; flat, or of the parameter's shape when all of it is owned.
  at::Tensor values;
  /// `copies` ranks own this same range, and this rank is number `copy` of them. A count that is
  /// made once over all ranks (a norm, the bytes of a checkpoint) is divided among them.
  int copy = 0;
  int copies = 1;
  /// `ties` stages of a pipeline, on different ranks, have this same range of a tied weight, and
  /// this is number `tie` of them.
  int tie = 0;
  int ties = 1;

  /// All ranks that own this range, and this rank's number among them.
  int owners() const { return copies * ties; }
  int owner() const { return tie * copies + copy; }
};

/// Sums gradients over the ranks that hold the same parameters. It divides nothing: losses contain
/// the factor 1 / N.
///
/// A parameter without a gradient on some ranks counts as zero there. One without a gradient on all
/// ranks stays without, so that the optimizer skips it. The model must have its memory already, and
/// must outlive this object.
class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  /// Is called before the backward pass of micro-batch `index` of `count`. Gradients accumulate
  /// without communication; in the last micro-batch they may be sent.
  virtual void begin(std::int64_t index, std::int64_t count) = 0;
  /// Is called after a backward pass, before `finish` or the next `begin`: does what other ranks
  /// may wait for in their backward pass.
  virtual void end_backward() {}
  /// Is called after the last backward pass. Returns when every gradient on this rank is the sum
  /// over the ranks.
  virtual void finish() = 0;

  /// Returns the ranges that this rank owns, in the order of the model's parameters, frozen ones
  /// included. They are fixed for the lifetime of this object.
  virtual const std::vector<OwnedRange>& owned() const = 0;
  /// Returns, after `finish`, the gradients of the trained ranges of `owned`, in their order,
  /// contiguous; undefined where no rank has one.
  virtual std::vector<at::Tensor> gradients() const = 0;
  /// Is called before the optimizer writes to owned ranges. Returns when no rank reads them any
  /// more.
  virtual void begin_update() {}
  /// Is called after the optimizer has written. Returns when every rank sees the new values.
  virtual void end_update() {}
};

/// Returns ranges of all of this rank's part of each parameter, for the ranks of `holders`, which
/// hold the same.
std::vector<OwnedRange> whole_ranges(const Parameters& parameters, const comm::Group& holders = {});
/// As above for a model on a mesh, in the model's order: each parameter among its own holders.
std::vector<OwnedRange> whole_ranges(const nn::Module& model, const mesh::Mesh& mesh);
/// Returns the gradients of all trained parameters, without a copy where they are contiguous.
std::vector<at::Tensor> whole_gradients(const std::vector<OwnedRange>& owned);
/// Returns the part of each gradient that this rank counts in a norm, flat: an even part where
/// several ranks own the same range. Over all ranks every element of every gradient is in one part,
/// so a sum over the world counts it once. `owned` and `gradients` are those of one reduction;
/// undefined gradients are left out.
std::vector<at::Tensor> counted_parts(const std::vector<OwnedRange>& owned,
                                      const std::vector<at::Tensor>& gradients);

/// Makes the plain implementation that the others are tested against: after the last backward pass,
/// each gradient is all-reduced.
std::unique_ptr<GradientReduction> reduce_after_backward(nn::Module& model, comm::Group group);
std::unique_ptr<GradientReduction> reduce_after_backward(const Parameters& parameters,
                                                         comm::Group group);

struct DataParallelOptions {
  std::size_t bucket_bytes = 25 << 20;  ///< size of a flat bucket, with kBuckets
  enum class Strategy { kAuto, kInPlace, kBuckets } strategy = Strategy::kAuto;
};

/// Data parallelism (Li et al., "PyTorch Distributed", VLDB 2020): a gradient is reduced during
/// backward as soon as it and all before it in a fixed order are ready.
///   kInPlace: each gradient is reduced where autograd left it, which costs no copy when ranks see
///   each other's memory;
///   kBuckets: gradients are written into flat buckets, in the order in which they became ready in
///   the first step, and a full bucket is sent;
///   kAuto: in place if all ranks see each other's memory, else in buckets.
///
/// Ranks may use different parameters: at `finish` they exchange a map of one byte a parameter,
/// over a group of its own. Collective to make. Throws Error(mismatch) that names the parameter
/// when ranks do not start from the same values.
std::unique_ptr<GradientReduction> data_parallel(nn::Module& model, comm::Group group,
                                                 const DataParallelOptions& options = {});
/// As above on a mesh where techniques cut some parameters: each is summed over its own holders.
std::unique_ptr<GradientReduction> data_parallel_on(nn::Module& model, const mesh::Mesh& mesh,
                                                    const DataParallelOptions& options = {});

}  // namespace shoal::parallel
