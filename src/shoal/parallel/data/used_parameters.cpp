#include "shoal/parallel/data/used_parameters.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "shoal/base/check.h"
#include "shoal/comm/equal_values.h"

namespace shoal::parallel {

Parameters trained_among(const Parameters& parameters) {
  Parameters trained;
  for (const auto& parameter : parameters)
    if (parameter->requires_grad()) trained.push_back(parameter);
  return trained;
}

std::vector<bool> agree_on_used(const Parameters& parameters, const comm::Group& group) {
  const at::Tensor map = at::empty({static_cast<std::int64_t>(parameters.size())}, at::kByte);
  auto* used = map.data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < parameters.size(); ++i) used[i] = parameters[i]->gradient().defined();
  group.all_reduce(map, {.reduction = comm::Reduction::kMax});
  std::vector<bool> result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    result.push_back(used[i] != 0);
    if (used[i] != 0 && !parameters[i]->gradient().defined()) parameters[i]->zero_gradient();
  }
  return result;
}

void check_equal_parameters(const Parameters& parameters, const comm::Group& group) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : parameters) values.push_back(parameter->tensor());
  const std::optional<std::size_t> different = comm::first_unequal(group, values);
  if (!different) return;
  throw Error(
      ErrorKind::kMismatch, "data_parallel",
      fmt::format("ranks start from different values of {}", parameters[*different]->name()))
      .at(group.rank(), group.size())
      .hint("give every rank the same seed or the same checkpoint");
}

}  // namespace shoal::parallel
