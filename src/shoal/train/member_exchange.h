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
  /// Makes the parameters those of the anchor, which may have got other values. Collective as
  /// `swap_anchor`.
  void take_anchor();

  /// Is called before a checkpoint is written: waits until the sum of an exchange in flight is
  /// there.
  void wait();
  /// Takes up training after step `step`: makes room for the sums in flight there, to be filled
  /// from a checkpoint as momentum and residuals are. Must be called before the first `after_step`,
  /// and after `restart` where the saved run had called that.
  void resume(std::int64_t step);

  /// Takes up training after step `step` from the checkpoint of other members, or of members that
  /// consist of other ranks: nothing is in flight. Must be called before the first `after_step`.
  void restart(std::int64_t step);

  /// Returns the values of the anchor that belong to slice `slice` of the optimizer, flat.
  at::Tensor anchor_of(std::size_t slice) const;
  /// Return the same of the momentum, and of what rounding took from this member's differences;
  /// undefined where the exchanges have none.
  at::Tensor momentum_of(std::size_t slice) const;
  at::Tensor residual_of(std::size_t slice) const;

  /// A range of a slice.
  struct Part {
    std::size_t slice = 0;
    std::int64_t begin = 0;
    at::Tensor values;  ///< flat
  };
  /// Returns the sums of exchanges in flight, with the same bits on all members, after `wait` or
  /// `resume`. All ranks that own a slice get the same parts of it.
  std::vector<Part> sums_in_flight() const;
  /// Returns what rounding took from sums: the parts of all members together are all values.
  std::vector<Part> sum_residuals() const;

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

  /// Returns the values that belong to a slice among those of its set; undefined as these are.
  at::Tensor of_slice(std::size_t slice, const at::Tensor& set) const;
  /// Divides values of a set, of which the first has the number `begin`, among the slices.
  void add_parts(std::vector<Part>& parts, std::size_t set, std::int64_t begin,
                 const at::Tensor& values) const;
  /// Returns the parts of what `values_of` gives of each fragment: values, of which the first has
  /// the number `begin` in the fragment, or an undefined tensor.
  template <class ValuesOf>
  std::vector<Part> parts_of_fragments(const ValuesOf& values_of) const;
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
