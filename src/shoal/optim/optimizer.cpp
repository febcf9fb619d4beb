#include "shoal/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/group.h"
#include "shoal/optim/device_update.h"
#include "shoal/optim/require.h"
#include "shoal/optim/state_file.h"
#include "shoal/optim/stored_update.h"

namespace shoal::optim {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements a thread takes at least

/// Elements up to the next multiple of 64 bytes.
std::int64_t aligned(std::int64_t count, at::ScalarType type) {
  // A cache line: no two slices share one, and vectors meet no line border inside.
  const auto multiple = static_cast<std::int64_t>(64 / at::elementSize(type));
  return (count + multiple - 1) / multiple * multiple;
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}
bool is_trained_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || is_half(tensor);
}

Stored stored(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()),
          comm::element_type(tensor.scalar_type())};  // NOLINT: gradients are only read
}

/// Calls `body` for the stretches of elements [begin, end) of a slice that follow each other in the
/// whole parameter, with the number of the first there. Without stochastic rounding no numbers are
/// drawn, and the range is one stretch.
template <class Body>
void for_stretches(const Place& place, std::int64_t begin, std::int64_t end, bool draws,
                   const Body& body) {
  if (place.width == 0 || !draws) {
    body(begin, end, place.begin + begin);
    return;
  }
  while (begin < end) {
    const std::int64_t row = (place.begin + begin) / place.width;
    const std::int64_t column = (place.begin + begin) % place.width;
    const std::int64_t stop = std::min(end, begin + place.width - column);
    body(begin, stop, place.first + row * place.stride + column);
    begin = stop;
  }
}

class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<Slice> slices, const AdamWOptions& options, const Storage& storage)
      : Optimizer(std::move(slices), storage),
        options_(options),
        exp_avg_(flat_state("exp_avg", storage.moments)),
        exp_avg_sq_(flat_state("exp_avg_sq", storage.moments)) {
    require(options.beta1 >= 0 && options.beta1 < 1, "optimizer", "beta1", options.beta1,
            "must lie in [0, 1)");
    require(options.beta2 >= 0 && options.beta2 < 1, "optimizer", "beta2", options.beta2,
            "must lie in [0, 1)");
    require(options.epsilon >= 0, "optimizer", "epsilon", options.epsilon, "must not be negative");
    require(options.weight_decay >= 0, "optimizer", "weight_decay", options.weight_decay,
            "must not be negative");
  }

  void step(at::ArrayRef<at::Tensor> gradients, double learning_rate,
            double gradient_scale) override {
    check(gradients);
    DeviceAdamW device;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (!gradients[i].defined()) continue;
      // A slice counts its own updates: the bias correction of a parameter that was unused for a
      // while goes on from where it stopped.
      const auto t = static_cast<double>(++updates_[i]);
      const AdamWFactors factors{.learning_rate = learning_rate,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .epsilon = options_.epsilon,
                                 .weight_decay = slices_[i].decay ? options_.weight_decay : 0,
                                 .correction1 = 1 - std::pow(options_.beta1, t),
                                 .correction2 = 1 - std::pow(options_.beta2, t),
                                 .gradient_scale = gradient_scale};
      if (slices_[i].parameter.is_cpu()) {
        update(i, gradients[i], factors);
      } else {
        const bool apart = !masters_[i].is_same(slices_[i].parameter);
        device.add({.parameter = masters_[i],
                    .copy = apart ? slices_[i].parameter : at::Tensor(),
                    .gradient = gradients[i],
                    .exp_avg = exp_avg_[i],
                    .exp_avg_sq = exp_avg_sq_[i]},
                   factors);
      }
    }
    device.update();
  }

 private:
  void update(std::size_t i, const at::Tensor& gradient, const AdamWFactors& factors) {
    const Slice& slice = slices_[i];
    // Either the parameter is updated where it lies, or its fp32 master is and the parameter is
    // written as the rounded copy in the same pass.
    const bool in_place = !masters_[i].defined() || masters_[i].is_same(slice.parameter);
    const StoredAdamW arrays{.parameter = stored(in_place ? slice.parameter : masters_[i]),
                             .copy = in_place ? Stored() : stored(slice.parameter),
                             .gradient = stored(gradient),
                             .exp_avg = stored(exp_avg_[i]),
                             .exp_avg_sq = stored(exp_avg_sq_[i])};
    const bool draws = arrays.parameter.type != ElementType::kF32 || storage_.moments != at::kFloat;
    // Rounding draws are a function of name, update and element: the same after a resume and on any
    // number of ranks.
    const Key key =
        draws ? storage_.rounding.child(slice.name).child(static_cast<std::uint64_t>(updates_[i]))
              : Key();
    // Every element by itself: the bits do not depend on how threads cut the range.
    at::parallel_for(0, gradient.numel(), kGrain, [&](std::int64_t first, std::int64_t last) {
      for_stretches(slice.place, first, last, draws, [&](auto begin, auto end, auto number) {
        const StoredAdamW part{arrays.parameter.from(begin), arrays.copy.from(begin),
                               arrays.gradient.from(begin), arrays.exp_avg.from(begin),
                               arrays.exp_avg_sq.from(begin)};
        adamw_update(part, end - begin, factors, {key, static_cast<std::uint64_t>(number)});
      });
    });
  }

  AdamWOptions options_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<Slice> slices, const SgdOptions& options, const Storage& storage)
      : Optimizer(std::move(slices), storage), options_(options) {
    for (const Slice& slice : slices_) {
      if (is_half(slice.parameter)) {
        throw Error(ErrorKind::kConfig, "optimizer",
                    fmt::format("{} has 16 bits: sgd trains in float32", slice.name));
      }
    }
    require(options.momentum >= 0, "optimizer", "momentum", options.momentum,
            "must not be negative");
    require(options.weight_decay >= 0, "optimizer", "weight_decay", options.weight_decay,
            "must not be negative");
    require(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "optimizer",
            "nesterov", options.nesterov, "needs momentum above 0 and dampening 0");
    if (options.momentum > 0) buffer_ = flat_state("momentum_buffer");
  }

  void step(at::ArrayRef<at::Tensor> gradients, double learning_rate,
            double gradient_scale) override {
    check(gradients);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (!gradients[i].defined()) continue;
      SHOAL_USER_CHECK(gradients[i].scalar_type() == at::kFloat, "optimizer",
                       "the gradient of {} has 16 bits: sgd takes float32", slices_[i].name);
      const SgdFactors factors{.learning_rate = learning_rate,
                               .momentum = options_.momentum,
                               .dampening = options_.dampening,
                               .weight_decay = slices_[i].decay ? options_.weight_decay : 0,
                               .nesterov = options_.nesterov,
                               // By the count and not by the buffer: zeros loaded from a checkpoint
                               // are a buffer too.
                               .first = updates_[i]++ == 0,
                               .gradient_scale = gradient_scale};
      if (!slices_[i].parameter.is_cpu()) {
        device_sgd_update(slices_[i].parameter, gradients[i],
                          buffer_.empty() ? at::Tensor() : buffer_[i], factors);
        continue;
      }
      float* p = slices_[i].parameter.data_ptr<float>();
      const float* g = gradients[i].const_data_ptr<float>();
      float* b = buffer_.empty() ? nullptr : buffer_[i].data_ptr<float>();
      at::parallel_for(0, gradients[i].numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        sgd_update(p + begin, g + begin, b ? b + begin : nullptr, end - begin, factors);
      });
    }
  }

 private:
  SgdOptions options_;
  std::vector<at::Tensor> buffer_;
};

}  // namespace

Optimizer::Optimizer(std::vector<Slice> slices, const Storage& storage)
    : slices_(std::move(slices)), updates_(slices_.size(), 0), storage_(storage) {
  if (storage.moments != at::kFloat && storage.moments != at::kBFloat16) {
    throw Error(ErrorKind::kConfig, "optimizer",
                fmt::format("moments in {}: float32 or bfloat16", c10::toString(storage.moments)));
  }
  for (const Slice& slice : slices_) {
    SHOAL_USER_CHECK(slice.parameter.defined() && is_trained_type(slice.parameter) &&
                         slice.parameter.is_contiguous(),
                     "optimizer", "{} must be a contiguous tensor of float32, bfloat16 or float16",
                     slice.name);
    if (slice.parameter.scalar_type() == at::kHalf && !storage.master) {
      throw Error(ErrorKind::kConfig, "optimizer",
                  fmt::format("{} is float16 and has no master weights", slice.name))
          .hint("float16 parameters need float32 masters; bfloat16 ones do without");
    }
    const bool rounds = (is_half(slice.parameter) && !storage.master) ||
                        storage.moments != at::kFloat || !storage.folder.empty();
    if (!slice.parameter.is_cpu() && rounds) {
      throw Error(ErrorKind::kConfig, "optimizer",
                  fmt::format("{} lies on {}: there stochastic rounding and states in files do not "
                              "exist",
                              slice.name, slice.parameter.device().str()))
          .hint("keep float32 masters and moments");
    }
  }
  make_masters();
}

std::vector<at::Tensor> Optimizer::flat_views(at::ScalarType type,
                                              const std::vector<bool>& wanted) const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < slices_.size(); ++i)
    if (wanted[i]) total += aligned(slices_[i].parameter.numel(), type);
  // One allocation for all slices. Views keep it alive, so it lives as long as any state does.
  const ScopedCategory category(MemoryCategory::kOptimizer);
  const auto options = at::TensorOptions(type).device(
      slices_.empty() ? at::Device(at::kCPU) : slices_.front().parameter.device());
  const at::Tensor flat = storage_.folder.empty() ? at::zeros({total}, options)
                                                  : zeros_in_file(storage_.folder, total, type);
  std::vector<at::Tensor> views(slices_.size());
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    if (!wanted[i]) continue;
    const at::Tensor& parameter = slices_[i].parameter;
    views[i] = flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    offset += aligned(parameter.numel(), type);
  }
  return views;
}

void Optimizer::make_masters() {
  std::vector<bool> wanted;
  for (const Slice& slice : slices_) wanted.push_back(storage_.master && is_half(slice.parameter));
  masters_ = flat_views(at::kFloat, wanted);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const at::Tensor& parameter = slices_[i].parameter;
    if (wanted[i]) {
      // Rounded values to begin with. A checkpoint or the initial weights in fp32 replace them
      // later.
      masters_[i].copy_(parameter.detach());
    } else if (!is_half(parameter)) {
      masters_[i] = parameter;
    }
  }
}

void Optimizer::copy_masters_to_parameters() {
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    if (masters_[i].defined() && is_half(slices_[i].parameter))
      slices_[i].parameter.detach().copy_(masters_[i]);
  }
}

std::vector<at::Tensor> Optimizer::flat_state(const std::string& kind, at::ScalarType type) {
  std::vector<at::Tensor> views = flat_views(type, std::vector<bool>(slices_.size(), true));
  for (std::size_t i = 0; i < slices_.size(); ++i) states_.push_back({kind, i, views[i]});
  return views;
}

void Optimizer::check(at::ArrayRef<at::Tensor> gradients) const {
  SHOAL_USER_CHECK(gradients.size() == slices_.size(), "optimizer", "{} gradients for {} slices",
                   gradients.size(), slices_.size());
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const at::Tensor& g = gradients[i];
    SHOAL_USER_CHECK(!g.defined() || (is_trained_type(g) && g.is_contiguous() &&
                                      g.numel() == slices_[i].parameter.numel()),
                     "optimizer",
                     "the gradient of {} must be a contiguous tensor of {} elements, float32, "
                     "bfloat16 or float16",
                     slices_[i].name, slices_[i].parameter.numel());
  }
}

void Optimizer::set_updates(std::vector<std::int64_t> updates) {
  SHOAL_USER_CHECK(updates.size() == slices_.size(), "optimizer", "{} counts for {} slices",
                   updates.size(), slices_.size());
  updates_ = std::move(updates);
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  const auto add = [&](const at::Tensor& t) {
    bytes += aligned(t.numel(), t.scalar_type()) * static_cast<std::int64_t>(t.element_size());
  };
  for (const State& state : states_) add(state.tensor);
  for (std::size_t i = 0; i < slices_.size(); ++i)
    if (masters_[i].defined() && is_half(slices_[i].parameter)) add(masters_[i]);
  return bytes;
}

std::unique_ptr<Optimizer> make_optimizer(std::vector<Slice> slices, const Options& options,
                                          const Storage& storage) {
  if (const auto* adamw = std::get_if<AdamWOptions>(&options))
    return std::make_unique<AdamW>(std::move(slices), *adamw, storage);
  return std::make_unique<Sgd>(std::move(slices), std::get<SgdOptions>(options), storage);
}

}  // namespace shoal::optim
