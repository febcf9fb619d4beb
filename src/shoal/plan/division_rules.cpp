#include "shoal/plan/division_rules.h"

#include <fmt/format.h>

namespace shoal::plan {

// A search asks for millions of plans: no text is made where a rule holds.

std::string context_rule(std::int64_t cp, std::int64_t length) {
  if (cp <= length) return {};
  return fmt::format("must be at most the {} tokens of a sequence: every rank needs a column",
                     length);
}

std::string whole_heads_rule(const model::ModelSpec& spec, const Degrees& degrees) {
  const std::int64_t cut = degrees.tp * degrees.cp;
  // A key-value head has equally many query heads, so these are divided too.
  if (spec.kv_heads % cut == 0) return {};
  return fmt::format(
      "an exchange of heads gives every rank whole key-value heads: tp x cp = {} must divide "
      "kv_heads = {}, as {} does",
      cut, spec.kv_heads, nearest_divisors(spec.kv_heads, cut));
}

std::string experts_rule(const model::ModelSpec& spec, std::int64_t ep) {
  if (ep == 1) return {};
  if (spec.experts == 0) return "the model has no experts";
  if (spec.experts % ep == 0) return {};
  return fmt::format("must divide experts = {}, as {} does", spec.experts,
                     nearest_divisors(spec.experts, ep));
}

std::string expert_copy_rule(const Degrees& degrees, const char* copy) {
  const std::int64_t ranks = degrees.stage_ranks() / degrees.dp_replicate;
  if (ranks % degrees.ep == 0) return {};
  return fmt::format("must divide the {} rank{} of {}, as {} does", ranks, ranks == 1 ? "" : "s",
                     degrees.dp_replicate > 1 ? copy : "a pipeline stage",
                     nearest_divisors(ranks, degrees.ep));
}

std::string stages_rule(std::int64_t units, std::int64_t stages) {
  if (stages <= units) return {};
  return fmt::format(
      "a stage needs at least one unit (embedding, a block, head): stages={} units={}, so that at "
      "most {} stages have one",
      stages, units, units);
}

}  // namespace shoal::plan
