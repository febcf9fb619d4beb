#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/mesh/mesh.h"
#include "shoal/nn/module.h"
#include "shoal/optim/optimizer.h"
#include "shoal/optim/synchronisation.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/pipeline/tied_weights.h"

namespace shoal::train {

struct MemberExchangeOptions {
  optim::SynchronisationOptions synchronisation;
  int fragments = 1;
};

/// The exchanges of a run whose members train by themselves (`[low_communication]` of the job
/// file). A member is the ranks of one mesh; each rank exchanges what it owns with the ranks at its
/// place in the other members. What the optimizer adds updates to is exchanged: the parameters, or
/// their fp32 masters.
///
/// Parameters that several ranks of a member own alike are exchanged apart from the others, in the
/// same order on all these ranks, and each takes the sum of the first: all get the same bits.
class MemberExchange {
 public:
  /// `owned`: the ranges of the optimizer's slices in their order, and frozen parameters besides.
  /// `mesh`: the ranks of this member. `tied`: its weights on several stages; null: there are none.
  /// `members`: one rank of each member, in order of members. All references must outlive this.
  /// Collective. Throws as optim::Synchronisation.
  MemberExchange(const nn::Model& model, const std::vector<parallel::OwnedRange>& owned,
                 optim::Optimizer& optimizer, parallel::GradientReduction& reduction,
                 const mesh::Mesh& mesh, const parallel::TiedWeights* tied, comm::Group members,
                 const MemberExchangeOptions& options);

  int member() const { return members_.rank(); }
  int members() const { return members_.size(); }
  /// Return the place of this rank in its member, and how many there are.
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Is called after the optimizer's update of step number `step`, counted from 1, on all ranks:
  /// begins the exchange that is due, and takes the result that is.
  void after_step(std::int64_t step);
  /// Makes the parameters those of the anchor, which is the model of all members; called again, it
  /// gives each member its own back. Collective over the ranks of a member.
  void swap_anchor();

  /// Is called before a checkpoint is written: waits until the sum of an exchange in flight is
  /// there.
  void wait();
  /// Takes up training after step `step`: makes room for the arrays that `arrays` has then, to be
  /// filled from a checkpoint. Must be called before the first `after_step`.
  void resume(std::int64_t step);

  /// Returns the values of the anchor that belong to slice `slice` of the optimizer, flat.
  at::Tensor anchor_of(std::size_t slice) const;
  /// An array that the next exchanges depend on, beside anchor and parameters.
  struct Array {
    std::string name;  ///< "rank-1.set-0.fragment-2.momentum"; the rank is that in the member
    at::Tensor values;
    bool shared = false;  ///< with the same bits on the ranks of `members`
  };
  std::vector<Array> arrays() const;

 private:
  /// Parameters that the same ranks of the member own.
  struct Set {
    std::string first;  ///< the name of its first parameter: all its owners agree on it
    std::vector<at::Tensor> parameters;
    std::int64_t values = 0;
    std::vector<comm::Group> alike;  ///< as optim::OuterOptions has it
  };
  struct Place {
    std::size_t set = 0;
    std::int64_t begin = 0;  ///< among the values of the set
    std::int64_t count = 0;
  };

  std::vector<Set> sets_of(const nn::Model& model, const std::vector<parallel::OwnedRange>& owned,
                           const mesh::Mesh& mesh, const parallel::TiedWeights* tied);

  optim::Optimizer& optimizer_;
  parallel::GradientReduction& reduction_;
  comm::Group members_;
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<Place> places_;  ///< by slice
  std::vector<optim::Synchronisation> sets_;
};

}  // namespace shoal::train
