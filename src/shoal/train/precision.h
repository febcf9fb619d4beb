#pragma once

#include <optional>
#include <string>

#include "shoal/base/clock.h"
#include "shoal/comm/group.h"
#include "shoal/model/model_spec.h"
#include "shoal/nn/module.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns LibTorch's type of a precision that was decided (not kAuto).
at::ScalarType scalar_type(Precision type);

/// Gives every parameter of `model`, which has no memory yet, the types that the job asks for;
/// `type` is what its precision.type comes to, not kAuto. Throws Error(config) for a pattern of
/// precision.parameters that fits no parameter.
void set_types(nn::Model& model, const Job& job, Precision type);

/// Returns the types and the place of the optimizer's state.
optim::Storage storage_options(const JobConfig& config);

/// Returns the scale of the loss when any parameter of `model` is float16.
std::optional<optim::LossScale> loss_scale(const nn::Model& model, const JobConfig& config,
                                           const comm::Group& group);

/// Fills the master weights of a new run with the initial weights before they are rounded to 16
/// bits. `owned` has the ranges of the optimizer's slices.
void reset_masters(const std::vector<parallel::OwnedRange>& owned, optim::Optimizer& optimizer,
                   Key key);

/// Returns e.g. "bf16 weights (82 of 148 tensors) with fp32 masters, gradients fp32, moments fp32";
/// an empty text where everything is fp32.
std::string describe_precision(const nn::Model& model, const JobConfig& config);

/// Seconds that the matmuls of one layer take, forward and backward, with fp32 weights and with
/// weights of a 16-bit type.
struct ProductTimes {
  double fp32_s = 0, narrow_s = 0;
};

/// Times the largest layer of `spec` at `rows` rows (at most 256 of them) with the conversions that
/// a 16-bit type costs. The ranks of `group` measure at the same time and add up their times, so
/// that all have the same result. Takes about `budget` beyond one pass of each. Collective.
ProductTimes measure_products(const model::ModelSpec& spec, std::int64_t rows, Precision type,
                              Duration budget, const comm::Group& group);

/// Chooses for precision.type = "auto" by these times: bf16 when it gains a twentieth, else fp32.
Precision faster_type(const ProductTimes& bf16);
/// Describes this choice in one sentence.
std::string describe_choice(const ProductTimes& bf16);
/// Returns a warning when `type`, which the job asks for, takes ten times as long as fp32 or more.
std::optional<std::string> warn_if_slow(Precision type, const ProductTimes& times);

}  // namespace shoal::train
