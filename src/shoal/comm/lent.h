#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/comm/engine.h"

namespace shoal::comm {

/// The tensors that the ranks of a group have lent each other (Group::lend): each one part, which
/// the others read in place where they share memory, and otherwise as a copy. The bits are the
/// same.
///
/// This rank gives all parts back when the last copy of the Lent and the last tensor that `part`
/// returned are gone. The owner's memory lives until every rank has given back or has ended. Until
/// then nobody writes to a lent tensor, not even its owner. Autograd's version counters do not see
/// a peer's write, so nothing checks that. Threads: any.
class Lent {
 public:
  /// Parts are read in place. Their shape is that of `own` but for dimension `dim`.
  Lent(std::shared_ptr<Engine> engine, std::shared_ptr<collective::Loan> loan,
       const at::Tensor& own, std::int64_t dim);
  /// Parts are copies, by rank; or, in a group of one, what it has itself.
  Lent(std::vector<at::Tensor> parts, bool copied);

  /// Returns false where the parts are copies; the same on all ranks.
  bool in_place() const;
  /// Returns the tensor of `rank`, of this one too: contiguous, without a graph, and to be read
  /// only.
  at::Tensor part(int rank) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace shoal::comm
