#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/optim/outer_optimizer.h"

namespace shoal::optim {

/// Says when members that train by themselves exchange their parameters. With one fragment and no
/// delay: local SGD or DiLoCo, as `outer` says. Otherwise: streaming DiLoCo (Douillard et al.,
/// "Streaming DiLoCo with overlapping communication", 2025, algorithm 2).
struct SynchronisationOptions {
  std::int64_t every = 500;  ///< steps between two exchanges of the same parameters: H
  /// Steps between the beginning of an exchange and the use of its result, during which training
  /// goes on: tau. At most `every` / fragments, so that one exchange at a time is in flight.
  std::int64_t delay = 0;
  /// The share that a member's parameters keep of themselves when they take a result: alpha, in
  /// [0, 1). With 0, what a member has learnt during the delay is lost.
  double mix = 0;
  OuterOptions outer;
};

/// Returns the step, from 1 to `every`, after which fragment `fragment` of `fragments` is exchanged
/// for the first time: (fragment + 1) every / fragments, rounded down. It is exchanged again every
/// `every` steps. Beginnings are spread evenly, and the last fragment begins after step `every`.
std::int64_t first_exchange(std::int64_t every, int fragments, int fragment);

/// Cuts parameters, as if they lay behind each other, into equal fragments: views of them, flat.
/// Cuts are at multiples of `multiple` values, such as the block of a codec.
std::vector<std::vector<at::Tensor>> even_fragments(const std::vector<at::Tensor>& parameters,
                                                    int fragments, std::int64_t multiple = 128);

/// Keeps members together that train by themselves: between steps of their own, each calls
/// `after_step`, which exchanges a fragment of the parameters when it is due. In a step a member
/// sends one fragment, and holds the difference of one. Not thread-safe.
class Synchronisation {
 public:
  /// An exchange whose result the parameters have taken.
  struct Exchange {
    int fragment = 0;
    double norm = 0;  ///< of the members' mean difference, equal on all members
  };

  /// `fragments`: parameters as OuterOptimizer takes them, each in one fragment. Collective. Throws
  /// as OuterOptimizer, and Error(config) for options outside their range.
  Synchronisation(std::vector<std::vector<at::Tensor>> fragments, const comm::Group& members,
                  const SynchronisationOptions& options);

  /// Is called after step number `step`, counted from 1, on all members. It begins the exchange
  /// that is due, without waiting for other members, and waits for the one whose delay has passed.
  /// Throws as OuterOptimizer::finish.
  std::optional<Exchange> after_step(std::int64_t step);

  /// Is called before a checkpoint is written: waits until the sum of an exchange in flight is
  /// there. Training goes on as if it had not been called.
  void wait();
  /// Takes up training after step `step`: `states` has what it had there, to be filled from a
  /// checkpoint, as have the parameters. Must be called before the first `after_step`, and after
  /// `restart` where the saved run had called that.
  void resume(std::int64_t step);
  /// Takes up training after step `step` with nothing in flight: exchanges that began in `step` or
  /// before have no result to come. Must be called before the first `after_step`. A checkpoint of
  /// the `delay` steps after it can be taken up only by who knows `step`.
  void restart(std::int64_t step) { restarted_ = step; }
  /// Returns all arrays of all fragments that the next exchanges depend on, besides the parameters.
  std::vector<OuterState> states() const;
  std::int64_t state_bytes() const;  ///< bytes of `states`

  /// Returns whether `after_step` will write parameters after step number `step`.
  bool writes_after(std::int64_t step) const;

  /// Is called at the end: finishes an exchange in flight, and makes the parameters those of the
  /// anchors, which are the model. All members have the same then.
  void take_anchors();
  /// Exchanges the values of parameters and anchors, so that the model can be evaluated; called
  /// again, it restores both. Between the two calls `after_step` must not be called.
  void swap_anchors() const;
  /// Returns the anchors of all fragments, one fragment after the other, [values].
  const at::Tensor& anchors() const { return memory_.anchor; }
  /// Return momentum and what rounding took from this member's differences, in the same order;
  /// undefined where the options have none.
  const at::Tensor& momentum() const { return memory_.momentum; }
  const at::Tensor& residual() const { return memory_.residual; }

  const std::vector<OuterOptimizer>& fragments() const { return fragments_; }

 private:
  /// Returns the number of the fragment whose exchange begins after `step`; -1: none.
  int beginning_at(std::int64_t step) const;
  /// Returns the number of the fragment whose result is taken after `step`; -1: none.
  int due_at(std::int64_t step) const;
  Exchange finish(int fragment);

  SynchronisationOptions options_;
  OuterMemory memory_;  ///< of all fragments, one after the other
  std::vector<OuterOptimizer> fragments_;
  std::int64_t restarted_ = 0;
};

}  // namespace shoal::optim
