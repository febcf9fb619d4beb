#include "shoal/parallel/data/used_parameters.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "shoal/base/check.h"

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
  if (group.size() == 1 || parameters.empty()) return;
  // A checksum over 32-bit words depends on every bit and runs at the speed of memory; two ranks
  // with different values have equal sums once in 2^64.
  const at::Tensor least = at::empty({static_cast<std::int64_t>(parameters.size())}, at::kLong);
  auto* sums = least.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor values = parameters[i]->tensor().detach().contiguous();
    const auto* bytes = static_cast<const std::byte*>(values.const_data_ptr());
    std::uint64_t sum = 0;
    const std::size_t words = values.nbytes() / 4;
    for (std::size_t w = 0; w < words; ++w) {
      std::uint32_t word = 0;
      std::memcpy(&word, bytes + 4 * w, 4);
      // The factor is odd, so that no change of a word is lost, and another one for each word, so
      // that two words that change places are noticed.
      sum += (word ^ 0x9e3779b9u) * (2 * static_cast<std::uint64_t>(w) + 0x9e3779b97f4a7c15u);
    }
    for (std::size_t b = 4 * words; b < values.nbytes(); ++b)
      sum = sum * 31 + static_cast<std::uint64_t>(bytes[b]);
    sums[i] = static_cast<std::int64_t>(sum);
  }
  const at::Tensor most = least.clone();
  group.all_reduce(least, {.reduction = comm::Reduction::kMin});
  group.all_reduce(most, {.reduction = comm::Reduction::kMax});
  // `sums` points to the minima by now. Where they equal the maxima all ranks have one value.
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (sums[i] != most.const_data_ptr<std::int64_t>()[i]) {
      throw Error(ErrorKind::kMismatch, "data_parallel",
                  fmt::format("ranks start from different values of {}", parameters[i]->name()))
          .at(group.rank(), group.size())
          .hint("give every rank the same seed or the same checkpoint");
    }
  }
}

}  // namespace shoal::parallel
