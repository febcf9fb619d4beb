#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shoal/data/dataset.h"

namespace shoal::data {

/// A corpus of a mixture and its share of the samples.
struct WeightedCorpus {
  std::shared_ptr<const TokenDataset> tokens;
  double weight = 1;  ///< > 0; weights need not sum to one
};

/// The origin of a sample: tokens [start, start + sequence_length + 1) of a corpus.
struct Sample {
  std::size_t corpus = 0;
  std::uint64_t epoch = 0;  ///< number of earlier passes over the corpus
  std::uint64_t start = 0;

  bool operator==(const Sample&) const = default;
};

/// The order in which a training run sees its data. The tokens of sample number i are a pure
/// function of the seed, the corpora with their weights, the sequence length and i: they do not
/// depend on the number of ranks, the batch size or the history of the run. Samples can be computed
/// in any order, and nothing is read to find one. Immutable and thread-safe.
///
/// One epoch of a corpus cuts it into windows of `sequence_length` tokens from a random offset on
/// and goes through all of them in random order (Permutation). Each prefix of the samples holds
/// every corpus in proportion to its weight, within about one sample per doubling of their number;
/// none waits for another to end.
class SampleCursor {
 public:
  /// Throws Error(usage) for no corpus, a weight that is not positive or a sequence length of 0,
  /// Error(data) for a corpus shorter than sequence_length + 1 tokens and for corpora with
  /// different tokenizers.
  SampleCursor(std::vector<WeightedCorpus> corpora, std::uint64_t sequence_length,
               std::uint64_t seed);

  Sample at(std::uint64_t sample) const;
  /// Reads the sample: its inputs are out[0, n), its labels out[1, n + 1). `out` has
  /// sequence_length + 1 elements.
  void fill(const Sample& sample, std::span<std::int64_t> out) const;

  std::uint64_t sequence_length() const { return length_; }
  std::uint64_t samples_per_epoch(std::size_t corpus) const { return corpora_[corpus].windows; }

  /// Returns a number that is equal for cursors with the same samples: those of one seed, one
  /// sequence length and the same corpora with the same weights.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Corpus {
    std::shared_ptr<const TokenDataset> tokens;
    std::uint64_t windows;  // number of windows in one epoch
    std::uint64_t offsets;  // number of offsets at which an epoch may begin
    double weight;
  };
  std::vector<Corpus> corpora_;
  std::uint64_t length_, seed_, fingerprint_ = 0;
};

/// The last of `index + 1` draws from `weights`, and the number of equal draws before it. The draws
/// are divided between the halves of the list, those of each half between its halves, and so on: in
/// every prefix each half has its share, rounded.
struct MixtureDraw {
  std::size_t member = 0;
  std::uint64_t before = 0;
};
MixtureDraw mixture_draw(std::span<const double> weights, std::uint64_t index);

}  // namespace shoal::data
