#include "shoal/comm/equal_values.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>

namespace shoal::comm {
namespace {

// A checksum over 32-bit words depends on every bit and runs at the speed of memory.
std::int64_t checksum(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
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
  return static_cast<std::int64_t>(sum);
}

}  // namespace

std::optional<std::size_t> first_unequal(const Group& group,
                                         const std::vector<at::Tensor>& tensors) {
  if (group.size() == 1 || tensors.empty()) return std::nullopt;
  const at::Tensor least = at::empty({static_cast<std::int64_t>(tensors.size())}, at::kLong);
  auto* sums = least.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < tensors.size(); ++i) sums[i] = checksum(tensors[i]);
  const at::Tensor most = least.clone();
  group.all_reduce(least, {.reduction = Reduction::kMin});
  group.all_reduce(most, {.reduction = Reduction::kMax});
  // `sums` points to the minima by now. Where they equal the maxima all ranks have one value.
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (sums[i] != most.const_data_ptr<std::int64_t>()[i]) return i;
  return std::nullopt;
}

}  // namespace shoal::comm
