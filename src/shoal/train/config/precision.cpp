#include "shoal/train/config/precision.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::train {
namespace {

void refuse_if_set(const Job& job, const std::string& key, const std::string& why) {
  if (job.origins.contains(key)) throw complaint(job, key, why);
}

void validate_sgd(const Job& job) {
  const PrecisionSection& p = job.config.precision;
  const char* why =
      "optimizer.name is \"sgd\", which keeps weights, gradients and momentum in fp32: use adamw, "
      "or leave this out";
  if (p.type != "fp32") throw complaint(job, "precision.type", why);
  if (may_use(job, "bf16") || may_use(job, "fp16"))
    throw complaint(job, "precision.parameters", why);
  if (p.gradients != "fp32") throw complaint(job, "precision.gradients", why);
  refuse_if_set(job, "precision.moments", "belongs to adamw, and optimizer.name is \"sgd\"");
}

}  // namespace

std::vector<PrecisionRule> precision_rules(const Job& job) {
  std::vector<PrecisionRule> rules;
  for (const std::string& text : job.config.precision.parameters) {
    const std::size_t equal = text.rfind('=');
    const std::string type = equal == std::string::npos ? "" : text.substr(equal + 1);
    if (equal == 0 || (type != "fp32" && type != "bf16" && type != "fp16")) {
      throw complaint(
          job, "precision.parameters",
          fmt::format("\"{}\" must be \"pattern=type\" with a type of fp32, bf16 and fp16", text));
    }
    rules.push_back({text.substr(0, equal), type});
  }
  return rules;
}

bool may_use(const Job& job, const std::string& type) {
  const std::string& general = job.config.precision.type;
  if (general == type || (general == "auto" && type != "fp16")) return true;
  const auto rules = precision_rules(job);
  return std::any_of(rules.begin(), rules.end(),
                     [&](const PrecisionRule& rule) { return rule.type == type; });
}

void validate_precision(const Job& job) {
  const PrecisionSection& p = job.config.precision;
  precision_rules(job);
  if (job.config.optimizer.name == "sgd") validate_sgd(job);
  const bool half = may_use(job, "fp16");
  const bool brain = may_use(job, "bf16");
  if (!half) {
    for (const char* key : {"precision.loss_scale", "precision.loss_scale_growth_interval"}) {
      refuse_if_set(job, key,
                    "scales the loss of fp16 weights, and there are none: bf16 and fp32 reach as "
                    "far as gradients do");
    }
  }
  if (!half && !brain) {
    refuse_if_set(job, "precision.master_weights",
                  "says how 16-bit weights are updated, and all are fp32");
  }
  if (half && !p.master_weights) {
    throw complaint(
        job, "precision.master_weights",
        "fp16 weights need fp32 ones behind them: only bf16 has the range to be updated in place");
  }
}

}  // namespace shoal::train
