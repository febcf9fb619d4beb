#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/comm/group.h"
#include "shoal/nn/module.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/train/member_exchange.h"
#include "shoal/train/run_record.h"

namespace shoal::train {

/// The tensors of a run: parameters and the optimizer's state. A parameter with master weights is
/// saved and loaded as these. Each rank of `group` loads the ranges that it owns; of the ranks that
/// own the same range, one saves it.
///
/// Members that train by themselves have one model in common, the anchor, which is "model.".
/// "member.M." has the parameters, the optimizer's state and the loss scale of member M, and
/// "outer." the values that the next exchanges depend on. All of them are tensors by parameter, so
/// that other members, or members of other ranks, can go on with them.
class TrainingState {
 public:
  /// `owned` has the ranges of the optimizer's slices in their order, and frozen parameters
  /// besides. `stage`: the ranks that hold the same stages of the model.
  TrainingState(std::vector<parallel::OwnedRange> owned, optim::Optimizer& optimizer,
                comm::Group group, comm::Group stage);

  /// From now on this rank saves and loads what members have. `scale`: of this member; null: there
  /// is none. Both must outlive this.
  void exchange_through(const MemberExchange& exchange, optim::LossScale* scale);

  /// Collective. Returns the checkpoint's path. Throws as checkpoint::save.
  std::string save(const std::string& directory, const RunRecord& record,
                   const checkpoint::SaveOptions& options) const;
  /// Starts a save on another thread. Parameters and optimizer must not change until
  /// saver.before_update(). Throws as Saver::start.
  void start_saving(checkpoint::Saver& saver, const std::string& directory, const RunRecord& record,
                    const checkpoint::SaveOptions& options) const;
  /// Collective. Fills parameters and optimizer in place. Throws as checkpoint::load.
  void load(const std::string& path);
  /// Collective. The same from a checkpoint of the run `saved`, whose members, or the ranks in
  /// them, are others than those of this one, as MemberResumption has it. `scale`: of this rank's
  /// member; null: there is none. `load_parameters` must have been called before, and before the
  /// exchanges were made.
  void load_other_members(const std::string& path, const RunRecord& saved, optim::LossScale* scale);

  /// Collective. Fills the momentum of the outer optimizer alone, where the checkpoint has one.
  /// Throws as checkpoint::load.
  void load_momentum(const std::string& path);

  /// Returns the tensors that a checkpoint of this moment has, as views.
  std::vector<checkpoint::StateItem> items_to_save() const;
  /// Returns tensors to fill with other values; `take_filled` then brings into effect what they
  /// hold.
  std::vector<checkpoint::StateItem> items_to_fill() { return items(); }
  void take_filled();

  /// Collective. Fills the parameters alone, from a checkpoint of any run: the optimizer stays
  /// fresh. Throws as checkpoint::load.
  void load_parameters(const std::string& path);

 private:
  std::vector<checkpoint::StateItem> items() const;
  std::vector<checkpoint::StateItem> member_items() const;

  std::vector<parallel::OwnedRange> owned_;
  optim::Optimizer& optimizer_;
  comm::Group group_;
  comm::Group stage_;
  at::Tensor updates_;  ///< [slices] int64: number of updates of each slice
  const MemberExchange* exchange_ = nullptr;
  optim::LossScale* scale_ = nullptr;  ///< of a member
  at::Tensor scale_state_;             ///< [3] float64, of `scale_`; zeros where there is none
};

/// Fills the parameters alone, for evaluation and generation.
void load_model(nn::Model& model, const std::string& path, const comm::Group& group);

}  // namespace shoal::train
