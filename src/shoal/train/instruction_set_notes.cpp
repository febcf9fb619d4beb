#include "shoal/train/instruction_set_notes.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace shoal::train {
namespace {

/// Longer than every name, with a zero behind it.
constexpr std::int64_t kNameBytes = 32;

constexpr const char* kLimits = "SHOAL_CPU limits both to the narrower one";

}  // namespace

std::vector<std::string> instruction_sets_of_ranks(const comm::Group& group,
                                                   const std::string& own) {
  const at::Tensor name = at::zeros({kNameBytes}, at::kByte);
  const at::Tensor names = at::zeros({group.size(), kNameBytes}, at::kByte);
  const auto length = std::min(own.size(), static_cast<std::size_t>(kNameBytes - 1));
  std::memcpy(name.data_ptr<std::uint8_t>(), own.data(), length);
  group.all_gather(names, name);
  std::vector<std::string> sets;
  const auto* text = reinterpret_cast<const char*>(names.const_data_ptr<std::uint8_t>());
  for (int rank = 0; rank < group.size(); ++rank) sets.emplace_back(text + rank * kNameBytes);
  return sets;
}

std::optional<std::string> describe_unequal_sets(const std::vector<std::string>& of_ranks) {
  std::map<std::string, std::size_t> first;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) first.emplace(of_ranks[rank], rank);
  if (first.size() < 2) return std::nullopt;
  std::vector<std::string> places;
  places.reserve(first.size());
  for (const auto& [set, rank] : first) places.push_back(fmt::format("{} on rank {}", set, rank));
  return fmt::format(
      "Instruction sets differ: {}. The last bits depend on which rank computes what; {}.",
      fmt::join(places, ", "), kLimits);
}

std::optional<std::string> describe_resumed_set(const std::string& before, const std::string& now) {
  if (before.empty() || before == now) return std::nullopt;
  return fmt::format(
      "This run began with {} instructions and goes on with {}: the last bits are others; {}.",
      before, now, kLimits);
}

}  // namespace shoal::train
