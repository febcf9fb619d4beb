#include "shoal/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/optim/update.h"

namespace shoal::optim {
namespace {

constexpr std::int64_t kAlignment = 64 / sizeof(float);  // elements
constexpr std::int64_t kGrain = 1 << 15;                 // elements a thread takes at least

void require(bool holds, const char* field, double value, const char* rule) {
  if (!holds) throw Error(ErrorKind::kConfig, "optimizer", fmt::format("{}={}: {}", field, value, rule));
}

std::int64_t aligned(std::int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<Slice> slices, const AdamWOptions& options)
      : Optimizer(std::move(slices)), options_(options), exp_avg_(flat_state("exp_avg")), exp_avg_sq_(flat_state("exp_avg_sq")) {
    require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "must lie in [0, 1)");
    require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "must lie in [0, 1)");
    require(options.epsilon >= 0, "epsilon", options.epsilon, "must not be negative");
    require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "must not be negative");
  }

  void step(at::ArrayRef<at::Tensor> gradients, double learning_rate, double gradient_scale) override {
    check(gradients);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const auto t = static_cast<double>(++updates_[i]);
      const AdamWFactors factors{.learning_rate = learning_rate,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .epsilon = options_.epsilon,
                                 .weight_decay = slices_[i].decay ? options_.weight_decay : 0,
                                 .correction1 = 1 - std::pow(options_.beta1, t),
                                 .correction2 = 1 - std::pow(options_.beta2, t),
                                 .gradient_scale = gradient_scale};
      float* p = slices_[i].parameter.data_ptr<float>();
      const float* g = gradients[i].const_data_ptr<float>();
      float *m = exp_avg_[i].data_ptr<float>(), *v = exp_avg_sq_[i].data_ptr<float>();
      at::parallel_for(0, gradients[i].numel(), kGrain,
                       [&](std::int64_t begin, std::int64_t end) { adamw_update(p + begin, g + begin, m + begin, v + begin, end - begin, factors); });
    }
  }

 private:
  AdamWOptions options_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<Slice> slices, const SgdOptions& options) : Optimizer(std::move(slices)), options_(options) {
    require(options.momentum >= 0, "momentum", options.momentum, "must not be negative");
    require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "must not be negative");
    require(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "nesterov", options.nesterov,
            "needs momentum above 0 and dampening 0");
    if (options.momentum > 0) buffer_ = flat_state("momentum_buffer");
  }

  void step(at::ArrayRef<at::Tensor> gradients, double learning_rate, double gradient_scale) override {
    check(gradients);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const SgdFactors factors{.learning_rate = learning_rate,
                               .momentum = options_.momentum,
                               .dampening = options_.dampening,
                               .weight_decay = slices_[i].decay ? options_.weight_decay : 0,
                               .nesterov = options_.nesterov,
                               .first = updates_[i]++ == 0,
                               .gradient_scale = gradient_scale};
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

Optimizer::Optimizer(std::vector<Slice> slices) : slices_(std::move(slices)), updates_(slices_.size(), 0) {
  for (const Slice& slice : slices_)
    SHOAL_USER_CHECK(slice.parameter.defined() && slice.parameter.scalar_type() == at::kFloat && slice.parameter.is_contiguous(), "optimizer",
                     "{} must be a contiguous float32 tensor", slice.name);
}

std::vector<at::Tensor> Optimizer::flat_state(const std::string& kind) {
  std::int64_t total = 0;
  for (const Slice& slice : slices_) total += aligned(slice.parameter.numel());
  const ScopedCategory category(MemoryCategory::kOptimizer);
  const at::Tensor flat = at::zeros({total}, at::kFloat);
  std::vector<at::Tensor> views;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const at::Tensor& parameter = slices_[i].parameter;
    views.push_back(flat.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    states_.push_back({kind, i, views.back()});
    offset += aligned(parameter.numel());
  }
  return views;
}

void Optimizer::check(at::ArrayRef<at::Tensor> gradients) const {
  SHOAL_USER_CHECK(gradients.size() == slices_.size(), "optimizer", "{} gradients for {} slices", gradients.size(), slices_.size());
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const at::Tensor& g = gradients[i];
    SHOAL_USER_CHECK(!g.defined() || (g.scalar_type() == at::kFloat && g.is_contiguous() && g.numel() == slices_[i].parameter.numel()), "optimizer",
                     "the gradient of {} must be a contiguous float32 tensor of {} elements", slices_[i].name, slices_[i].parameter.numel());
  }
}

void Optimizer::set_updates(std::vector<std::int64_t> updates) {
  SHOAL_USER_CHECK(updates.size() == slices_.size(), "optimizer", "{} counts for {} slices", updates.size(), slices_.size());
  updates_ = std::move(updates);
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const State& state : states_) bytes += aligned(state.tensor.numel()) * static_cast<std::int64_t>(sizeof(float));
  return bytes;
}

std::unique_ptr<Optimizer> make_optimizer(std::vector<Slice> slices, const Options& options) {
  if (const auto* adamw = std::get_if<AdamWOptions>(&options)) return std::make_unique<AdamW>(std::move(slices), *adamw);
  return std::make_unique<Sgd>(std::move(slices), std::get<SgdOptions>(options));
}

}  // namespace shoal::optim
