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
  std::uint64_t epoch = 0;  ///< how often the corpus was gone through before
  std::uint64_t start = 0;

  bool operator==(const Sample&) const = default;
};

/// The order in which a training run sees its data. Which tokens sample number i holds is a pure
/// function of the seed, the corpora with their weights, the sequence length and i: the number of
/// ranks, the batch size and the history of the run do not enter. Any sample can be asked for at
/// any time; nothing is read to find one. Immutable and thread-safe.
///
/// One epoch of a corpus cuts it into windows of `sequence_length` tokens from a random offset on
/// and goes through all of them in random order (Permutation). Of several corpora each prefix of
/// the samples holds each in proportion to its weight, within about one sample per doubling of
/// their number; none waits for another to end.
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

  /// The same for cursors with the same samples: of the seed, the sequence length, the corpora and
  /// their weights.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Corpus {
    std::shared_ptr<const TokenDataset> tokens;
    std::uint64_t windows;  // of one epoch
    std::uint64_t offsets;  // how many offsets an epoch may begin at
    double weight;
  };
  std::vector<Corpus> corpora_;
  std::uint64_t length_, seed_, fingerprint_ = 0;
};

/// The last of `index + 1` draws from `weights`, and the number of equal draws before it. Divides
/// the draws between the halves of the list, each half again between its halves: in
/// every prefix each half has its share, rounded.
struct MixtureDraw {
  std::size_t member = 0;
  std::uint64_t before = 0;
};
MixtureDraw mixture_draw(std::span<const double> weights, std::uint64_t index);

}  // namespace shoal::data
