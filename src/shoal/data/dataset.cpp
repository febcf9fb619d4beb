#include "shoal/data/dataset.h"

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/data/manifest.h"

namespace shoal::data {
namespace {

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& folder,
                                                const Manifest& manifest) {
  const std::string path = folder + "/" + kTokenizerFile;
  const std::string bytes = read_file(path);
  // Tokens mean nothing under another tokenizer, and nothing else would notice.
  if (crc32(bytes) != manifest.tokenizer_crc32) {
    throw Error(ErrorKind::kData, "dataset",
                fmt::format("{} is not the tokenizer of {}: its checksum is {:08x}, not {:08x}",
                            path, kManifestFile, crc32(bytes), manifest.tokenizer_crc32));
  }
  return parse_tokenizer(bytes, path);
}

void check_entry(const TokenShard& shard, const ShardEntry& entry, const Manifest& manifest) {
  // A shard and the manifest tell the same twice. Files of different runs that were mixed in one
  // folder are found here, not as strange losses.
  const ShardHeader& header = shard.header();
  const bool same = header.tokens == entry.tokens && header.documents == entry.documents &&
                    header.text_bytes == entry.bytes && header.body_crc32 == entry.crc32 &&
                    header.fingerprint == manifest.fingerprint &&
                    header.tokenizer_crc32 == manifest.tokenizer_crc32;
  if (!same) {
    throw Error(ErrorKind::kData, "dataset",
                fmt::format("{} belongs to another dataset than the {} beside it", shard.path(),
                            kManifestFile));
  }
}

}  // namespace

TokenDataset TokenDataset::open(const std::string& folder, const std::string& split, Check check) {
  const Manifest manifest = read_manifest(folder);
  const auto found = manifest.splits.find(split);
  if (found == manifest.splits.end()) {
    throw Error(ErrorKind::kData, "dataset",
                fmt::format("{} has no split '{}'; it has train and validation", folder, split));
  }
  if (found->second.tokens == 0) {
    throw Error(ErrorKind::kData, "dataset",
                fmt::format("the split '{}' of {} is empty", split, folder));
  }
  TokenDataset dataset;
  dataset.name_ = folder + " (" + split + ")";
  dataset.tokenizer_ = open_tokenizer(folder, manifest);
  dataset.fingerprint_ = Key(manifest.fingerprint).child(split).value();
  for (const ShardEntry& entry : found->second.shards) {
    TokenShard shard(folder + "/" + entry.file, check == Check::kBodies);
    check_entry(shard, entry, manifest);
    const std::uint64_t begin = dataset.begins_.back();
    // The first entry of a shard is where the one before it ended.
    for (const std::uint64_t at : shard.document_tokens().subspan(1))
      dataset.document_begins_.push_back(begin + at);
    dataset.begins_.push_back(begin + entry.tokens);
    dataset.bytes_ += entry.bytes;
    dataset.shards_.push_back(std::move(shard));
  }
  dataset.files_ = found->second.files;
  // A manifest that was edited, or whose shards were exchanged, fails here.
  const bool whole =
      dataset.tokens() == found->second.tokens && dataset.documents() == dataset.files_.size();
  if (!whole) {
    throw Error(
        ErrorKind::kData, "dataset",
        fmt::format("{}/{} contradicts itself on split '{}'", folder, kManifestFile, split));
  }
  return dataset;
}

template <class T>
void TokenDataset::copy_across(std::uint64_t start, std::span<T> out) const {
  SHOAL_USER_CHECK(start <= tokens() && out.size() <= tokens() - start, "dataset",
                   "tokens {} to {} of {}, which has {}", start, start + out.size(), name_,
                   tokens());
  // The last shard that begins at or before `start`; a window may run on into the next ones.
  std::size_t shard = std::upper_bound(begins_.begin(), begins_.end(), start) - begins_.begin() - 1;
  while (!out.empty()) {
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), begins_[shard + 1] - start);
    shards_[shard].copy(start - begins_[shard], out.first(count));
    out = out.subspan(count);
    start += count;
    ++shard;
  }
}

void TokenDataset::copy(std::uint64_t start, std::span<std::int64_t> out) const {
  copy_across(start, out);
}
void TokenDataset::copy(std::uint64_t start, std::span<std::uint32_t> out) const {
  copy_across(start, out);
}

std::uint64_t TokenDataset::bytes_of(std::uint64_t start, std::uint64_t count) const {
  std::vector<std::uint32_t> ids(count);
  copy(start, std::span(ids));
  std::uint64_t bytes = 0;
  for (const std::uint32_t id : ids) bytes += tokenizer_->bytes_of(id).size();
  return bytes;
}

}  // namespace shoal::data
