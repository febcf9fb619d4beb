#include "shoal/train/config/precision.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::train {
namespace {

void reject_if_set(const Job& job, const std::string& key, const std::string& why) {
  if (job.origins.contains(key)) throw config_error(job, key, why);
}

void validate_sgd(const Job& job) {
  const PrecisionSection& p = job.config.precision;
  const char* why =
      "optimizer.name is \"sgd\", which keeps weights, gradients and momentum in fp32: use adamw, "
      "or leave this out";
  if (p.type != Precision::kFp32) throw config_error(job, "precision.type", why);
  if (may_use(job, Precision::kBf16) || may_use(job, Precision::kFp16))
    throw config_error(job, "precision.parameters", why);
  if (p.gradients != Precision::kFp32) throw config_error(job, "precision.gradients", why);
}

}  // namespace

std::vector<PrecisionRule> precision_rules(const Job& job) {
  std::vector<PrecisionRule> rules;
  for (const std::string& text : job.config.precision.parameters) {
    // The last one: a pattern may hold "=".
    const std::size_t equal = text.rfind('=');
    const auto type =
        find_choice<Precision>(equal == std::string::npos ? "" : text.substr(equal + 1));
    if (equal == 0 || !type || *type == Precision::kAuto) {
      throw config_error(
          job, "precision.parameters",
          fmt::format("\"{}\" must be \"pattern=type\" with a type of fp32, bf16 and fp16", text));
    }
    rules.push_back({text.substr(0, equal), *type});
  }
  return rules;
}

bool may_use(const Job& job, Precision type) {
  const Precision general = job.config.precision.type;
  // auto chooses between fp32 and bf16.
  if (general == type || (general == Precision::kAuto && type != Precision::kFp16)) return true;
  const auto rules = precision_rules(job);
  return std::any_of(rules.begin(), rules.end(),
                     [&](const PrecisionRule& rule) { return rule.type == type; });
}

void validate_precision(const Job& job) {
  const PrecisionSection& p = job.config.precision;
  precision_rules(job);
  if (job.config.optimizer.name == OptimizerKind::kSgd) validate_sgd(job);
  const bool half = may_use(job, Precision::kFp16);
  const bool brain = may_use(job, Precision::kBf16);
  // Keys of fp16 are refused where no weight is or may become fp16, and so on: a key without effect
  // is a misunderstanding.
  if (!half) {
    for (const char* key : {"precision.loss_scale", "precision.loss_scale_growth_interval"}) {
      reject_if_set(job, key,
                    "scales the loss of fp16 weights, and there are none: bf16 and fp32 reach as "
                    "far as gradients do");
    }
  }
  if (!half && !brain) {
    reject_if_set(job, "precision.master_weights",
                  "says how 16-bit weights are updated, and all are fp32");
  }
  if (half && !p.master_weights) {
    throw config_error(
        job, "precision.master_weights",
        "fp16 weights need fp32 ones behind them: only bf16 has the range to be updated in place");
  }
}

}  // namespace shoal::train
