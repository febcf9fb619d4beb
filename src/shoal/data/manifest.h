#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shoal::data {

/// One shard as the manifest lists it.
struct ShardEntry {
  std::string file;
  std::uint64_t tokens = 0, documents = 0, bytes = 0;
  std::uint32_t crc32 = 0;  ///< checksum of the shard's body
};

/// One split: its size, its shards in order and the paths of its documents in order.
struct SplitEntry {
  std::uint64_t tokens = 0, documents = 0, bytes = 0;
  std::vector<ShardEntry> shards;
  std::vector<std::string> files;
};

/// Counts of files that were left out of the corpus before it was split.
struct SourceCounts {
  std::uint64_t files = 0, bytes = 0;  ///< as found
  std::uint64_t empty_files = 0;       ///< hold nothing, or nothing that did not stand elsewhere
  std::uint64_t near_duplicate_files = 0, near_duplicate_bytes = 0;
  std::uint64_t repeated_passages = 0, repeated_passage_bytes = 0;
  std::uint64_t binary_files = 0, binary_bytes = 0;  ///< looked like no text

  bool operator==(const SourceCounts&) const = default;
};

/// The contents of manifest.json. The file is written last, so a folder that has one holds a whole
/// dataset.
struct Manifest {
  /// A hash of the options and of the path, size and checksum of every input.
  std::uint64_t fingerprint = 0;
  std::map<std::string, std::string> options;
  SourceCounts source;
  std::string tokenizer_name;
  std::uint32_t vocab_size = 0;
  std::uint32_t tokenizer_crc32 = 0;
  std::map<std::string, SplitEntry> splits;  ///< "train", "validation"
};

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kTokenizerFile = "tokenizer.model";

std::string to_json(const Manifest& manifest);

/// Throws Error(data), which names `origin`, when the text is no manifest of this version.
Manifest parse_manifest(const std::string& json, const std::string& origin);

/// Reads the manifest in a dataset's folder. Throws Error(input missing) when there is none, with a
/// hint whether preparing was interrupted.
Manifest read_manifest(const std::string& folder);

}  // namespace shoal::data
