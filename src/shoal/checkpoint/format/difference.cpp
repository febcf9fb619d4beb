#include "shoal/checkpoint/format/difference.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace shoal::checkpoint::format {
namespace {

std::string form_of(const LogicalTensor& tensor) {
  return fmt::format("{} {}", name(tensor.type), text(tensor.shape));
}

template <class T>
T element(const std::vector<char>& bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

double number(const std::vector<char>& bytes, ElementType type, std::int64_t index) {
  switch (type) {
    case ElementType::kF64:
      return element<double>(bytes, index);
    case ElementType::kF32:
      return element<float>(bytes, index);
    default:
      return std::bit_cast<float>(static_cast<std::uint32_t>(element<std::uint16_t>(bytes, index))
                                  << 16);
  }
}

Difference compare_values(const LogicalTensor& tensor, const std::vector<char>& a,
                          const std::vector<char>& b) {
  Difference difference{.name = tensor.name,
                        .first = form_of(tensor),
                        .second = form_of(tensor),
                        .count = count_of(tensor.shape)};
  const bool numbers = tensor.type == ElementType::kF64 || tensor.type == ElementType::kF32 ||
                       tensor.type == ElementType::kBF16;
  const std::size_t size = size_of(tensor.type);
  double largest = 0;
  for (std::int64_t i = 0; i < difference.count; ++i) {
    if (std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0) continue;
    ++difference.elements;
    if (!numbers) continue;
    const double apart = std::abs(number(a, tensor.type, i) - number(b, tensor.type, i));
    largest =
        std::max(largest, std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
  }
  if (numbers) difference.largest_apart = largest;
  return difference;
}

}  // namespace

std::vector<Difference> compare(Reader& first, Reader& second) {
  using Kind = Difference::Kind;
  std::vector<Difference> differences;
  auto a = first.manifest().tensors.begin();
  auto b = second.manifest().tensors.begin();
  const auto a_end = first.manifest().tensors.end();
  const auto b_end = second.manifest().tensors.end();
  // Manifests list tensors by name, so one pass over both pairs them.
  while (a != a_end || b != b_end) {
    if (b == b_end || (a != a_end && a->name < b->name)) {
      differences.push_back({.name = a->name, .kind = Kind::kOnlyFirst, .first = form_of(*a)});
      ++a;
    } else if (a == a_end || b->name < a->name) {
      differences.push_back({.name = b->name, .kind = Kind::kOnlySecond, .second = form_of(*b)});
      ++b;
    } else {
      if (form_of(*a) != form_of(*b)) {
        differences.push_back(
            {.name = a->name, .kind = Kind::kForm, .first = form_of(*a), .second = form_of(*b)});
      } else if (a->checksum() != b->checksum()) {
        // Checksums do not depend on how a tensor is sharded, so only tensors that differ are read.
        differences.push_back(compare_values(*a, first.read(*a), second.read(*b)));
      }
      ++a;
      ++b;
    }
  }
  return differences;
}

}  // namespace shoal::checkpoint::format
