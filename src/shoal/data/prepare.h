#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/data/binary_file.h"
#include "shoal/data/manifest.h"
#include "shoal/data/tokenizer.h"

namespace shoal::data {

enum class TokenizerKind { kBytes, kBpe, kGiven };

/// Inputs and options of `prepare`. Exactly one of `inputs` and `headers` is given.
struct PrepareOptions {
  std::string out;                    ///< folder of the dataset, made if need be
  std::vector<std::string> inputs;    ///< files and folders
  std::vector<std::string> suffixes;  ///< files of folders must end so; empty: all are taken
  std::string headers;                ///< include folder of the pinned Torch: the header corpus
  TokenizerKind tokenizer = TokenizerKind::kBpe;
  std::shared_ptr<const Tokenizer> given;        ///< kGiven: a model's tokenizer, taken as it is
  std::uint32_t vocab_size = 4096;               ///< BPE: entries at most
  std::uint64_t tokenizer_bytes = 256ull << 20;  ///< BPE: the most training text that it sees
  double validation_fraction = 0.05;  ///< part of the documents, chosen by a hash of their names
  bool drop_duplicates = true;        ///< near-duplicate files and repeated passages
  bool keep_binary = false;           ///< take files that are no text too
  std::uint64_t shard_tokens = 64ull << 20;  ///< a shard is closed when it has so many tokens
  std::uint64_t seed = 0;                    ///< decides the split
  int threads = 1;
  Duration patience{};  ///< longest wait for another process that is at work in `out`; zero:
                        ///< not at all
};

/// Is called with the progress, from the calling thread: a stage ("tokenizing train"), and how much
/// of `total` is done. In the last call of a stage both are equal.
using Progress =
    std::function<void(const std::string& stage, std::uint64_t done, std::uint64_t total)>;

struct PrepareResult {
  Manifest manifest;
  bool already_prepared = false;         ///< the folder held the dataset already
  std::uint64_t shards_reused = 0;       ///< whole shards of an interrupted run that were kept
  std::vector<BinaryFile> binary_files;  ///< left out by this call
};

/// Makes a dataset: reads the inputs, removes duplicates, splits by file, trains the tokenizer on
/// the training split unless one is given, writes token shards and last the manifest. The same
/// inputs and options give the same bytes on every machine and with any number of threads; the
/// times of files do not matter. Files of the inputs that are no text are left out unless
/// `keep_binary` says otherwise.
///
/// Each file is written aside and renamed. A run after an interrupted one keeps the tokenizer and
/// the shards that are whole and makes the rest. A folder that holds a dataset of other inputs or
/// options is refused, Error(usage), and left as it is. Throws Error(data) for an empty corpus,
/// Error(input missing), Error(output).
///
/// All text is in memory while it runs.
PrepareResult prepare(const PrepareOptions& options, const Progress& progress = {});

/// Lists options with which the dataset in `options.out` was made and that differ: option
/// ("tokenizer", "vocab_size") -> value there. "inputs" stands for files whose number, names or
/// total bytes differ; no input is read. Throws Error(input missing) when there is no dataset, or
/// an input is gone.
std::map<std::string, std::string> prepared_otherwise(const PrepareOptions& options);

}  // namespace shoal::data
