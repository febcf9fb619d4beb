#include "apps/shoal/machine/storage_pattern.h"

#include "shoal/base/check.h"
#include "shoal/base/hash.h"

namespace shoal::apps {
namespace {

constexpr auto kBlockWords =
    static_cast<std::size_t>(StoragePattern::kBlockBytes) / sizeof(std::uint64_t);

/// Returns the number with which the block at `position` of the file begins.
std::uint64_t number_at(std::uint64_t stream, std::int64_t position) {
  return splitmix64(stream ^ splitmix64(static_cast<std::uint64_t>(position)));
}

}  // namespace

StoragePattern::StoragePattern(std::int64_t chunk_bytes, std::uint64_t stream)
    : chunk_(static_cast<std::size_t>(chunk_bytes) / sizeof(std::uint64_t)), stream_(stream) {
  SHOAL_CHECK(chunk_bytes > 0 && chunk_bytes % kBlockBytes == 0, "a chunk of {} bytes",
              chunk_bytes);
  for (std::size_t i = 0; i < chunk_.size(); ++i) chunk_[i] = splitmix64(stream + i);
}

void StoragePattern::move_to(std::int64_t offset) {
  for (std::size_t i = 0; i < chunk_.size(); i += kBlockWords)
    chunk_[i] = number_at(stream_, offset + static_cast<std::int64_t>(i * sizeof(std::uint64_t)));
}

std::optional<std::int64_t> StoragePattern::first_wrong(std::int64_t offset,
                                                        std::int64_t bytes) const {
  for (std::int64_t at = 0; at < bytes; at += kBlockBytes) {
    const auto word = static_cast<std::size_t>(at) / sizeof(std::uint64_t);
    if (chunk_[word] != number_at(stream_, offset + at)) return offset + at;
  }
  return std::nullopt;
}

}  // namespace shoal::apps
