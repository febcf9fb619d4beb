#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/comm/group.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/train/member_exchange.h"
#include "shoal/train/run_record.h"

namespace shoal::train {

/// Throws Error(config) where the checkpoint in folder `path` is one of members that an earlier
/// version wrote: it has the state of exchanges as arrays of each rank.
void check_version_of_members(const std::string& path);

/// Fills a run from a checkpoint whose members were others, or consisted of other ranks.
///
/// - Members that are in both go on with their parameters and inner optimizers.
/// - A new member begins with the anchor. Its inner optimizer has the mean of the states of all
///   saved members, the least of their numbers of updates and of their loss scales.
/// - A run without members goes on as one new member would; one that had none gives its model to
///   all members as the anchor, and each the state of its optimizer.
/// - An exchange in flight is finished: the anchor moves by its sum, as the saved run would have
///   done it `delay` steps after its beginning, and the members that go on take it over.
/// - What rounding took and has not given back stays where it is with as many members. With others
///   all of it, that of members who have left too, is added to the next sums, times new members /
///   saved members, because a sum is divided by the members.
class MemberResumption {
 public:
  /// What is filled. Parameters have the values of the checkpoint's "model." already.
  struct Run {
    /// The ranges of the optimizer's slices, in their order.
    const std::vector<parallel::OwnedRange>& owned;
    optim::Optimizer& optimizer;
    const comm::Group& group;        ///< all ranks
    const MemberExchange* exchange;  ///< null: the run has no members
    optim::LossScale* scale;         ///< of this member; null: there is none
  };

  /// `path` has the checkpoint of the run `saved`, of which check_version_of_members has none to
  /// refuse. Throws Error(data) where it has not as many members as `saved` says.
  MemberResumption(std::string path, const RunRecord& saved, const Run& run);

  /// Collective. Throws as checkpoint::load, Error(data) for boxes that do not fit their parameters
  /// or of which some are missing, and Error(non-finite) for a sum in flight that is not finite.
  void load();

 private:
  using Items = std::vector<checkpoint::StateItem>;
  /// Values of a slice that a checkpoint has in boxes.
  struct Boxed {
    at::Tensor values;   ///< flat; undefined: none of them
    at::Tensor present;  ///< bool: which of them it has
  };

  bool is_new() const;
  bool has(const std::string& prefix) const;
  void load_items(const Items& items, const std::string& scope) const;
  checkpoint::StateItem state_item(const std::string& prefix, const optim::State& state,
                                   const at::Tensor& values) const;
  void add_updates(Items& items, const std::string& prefix) const;
  void load_own();
  std::set<std::string> saved_kinds() const;
  void load_mean();
  void load_mean_of(const std::string& kind);
  void load_least(const std::set<std::string>& kinds);
  void set_scale(const std::vector<at::Tensor>& saved) const;
  void load_momentum();
  void finish_exchanges();
  void finish_slice(std::size_t slice, const Boxed& sum,
                    const optim::SynchronisationOptions& how) const;
  void load_residuals();
  void check_residuals(const std::vector<Boxed>& sums) const;
  void fold_residuals() const;
  std::vector<Boxed> read_boxes(const std::string& prefix) const;

  std::string path_;
  const RunRecord& saved_;
  Run run_;
  checkpoint::format::Manifest manifest_;
  int saved_members_ = 0;
  int members_ = 0;  ///< 0: the run has none
  int member_ = 0;
  std::vector<at::Tensor> momentum_;  ///< by slice, flat; empty: there is none
  at::Tensor updates_;                ///< [slices] int64
};

}  // namespace shoal::train
