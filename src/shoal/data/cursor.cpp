#include "shoal/data/cursor.h"

#include <cmath>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/data/permutation.h"

namespace shoal::data {
namespace {

/// How many of the first `draws` go to the first half, whose share is `share` / 2^32, rounded to
/// the nearest.
std::uint64_t first_half(std::uint64_t draws, std::uint64_t share) {
  return static_cast<std::uint64_t>(
      (static_cast<unsigned __int128>(draws) * share + (std::uint64_t{1} << 31)) >> 32);
}

}  // namespace

MixtureDraw mixture_draw(std::span<const double> weights, std::uint64_t index) {
  MixtureDraw draw{0, index};
  while (weights.size() > 1) {
    // The draws are dealt to two halves of the list so that each has its share, rounded, in every
    // prefix; a draw then has a number within its half, and the half is divided again. Integers
    // alone decide (shares of 2^-32): no rounding accumulates over billions of samples.
    const auto half = weights.size() / 2;
    const double first = std::accumulate(weights.begin(), weights.begin() + half, 0.0);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto share = static_cast<std::uint64_t>(std::llround(first / all * 0x1p32));
    const std::uint64_t before = first_half(draw.before, share);
    // This draw is the one that raised the count of the first half.
    if (first_half(draw.before + 1, share) > before) {
      weights = weights.first(half);
      draw.before = before;
    } else {
      weights = weights.subspan(half);
      draw.member += half;
      draw.before -= before;
    }
  }
  return draw;
}

SampleCursor::SampleCursor(std::vector<WeightedCorpus> corpora, std::uint64_t sequence_length,
                           std::uint64_t seed)
    : length_(sequence_length), seed_(seed) {
  SHOAL_USER_CHECK(!corpora.empty() && sequence_length >= 1, "data",
                   "{} corpora, sequences of {} tokens", corpora.size(), sequence_length);
  // A hash of the corpora and their shares, which a resumed run compares. The number keeps it apart
  // from other hashes.
  Key fingerprint(2);
  double total = 0;
  for (const auto& corpus : corpora) total += corpus.weight;
  for (auto& [tokens, weight] : corpora) {
    SHOAL_USER_CHECK(std::isfinite(weight) && weight > 0, "data",
                     "a weight of {} for {}; it must be above 0", weight, tokens->name());
    const std::uint64_t count = tokens->tokens();
    if (count < length_ + 1) {
      throw Error(ErrorKind::kData, "data",
                  fmt::format("{} has {} tokens, less than one sequence of {} and its last label",
                              tokens->name(), count, length_))
          .hint("choose a shorter sequence or more data");
    }
    // The same number would mean other text in each corpus.
    if (tokens->tokenizer().checksum() != corpora[0].tokens->tokenizer().checksum()) {
      throw Error(ErrorKind::kData, "data",
                  fmt::format("{} and {} have different tokenizers", corpora[0].tokens->name(),
                              tokens->name()));
    }
    // Every offset below the length leaves the same number of windows when the last, partly free
    // one is given up.
    const bool room = count >= 2 * length_;
    corpora_.push_back(
        {tokens, room ? count / length_ - 1 : (count - 1) / length_, room ? length_ : 1, weight});
    const double share = weight / total;
    // Weights enter as rounded shares: 1 : 1 and 2 : 2 are the same mixture.
    fingerprint = fingerprint.child(tokens->fingerprint())
                      .child(static_cast<std::uint64_t>(std::llround(share * 0x1p32)));
  }
  fingerprint_ = Key(fingerprint.value()).child(seed_).child(length_).value();
}

Sample SampleCursor::at(std::uint64_t sample) const {
  std::vector<double> weights;
  for (const Corpus& corpus : corpora_) weights.push_back(corpus.weight);
  const MixtureDraw draw = mixture_draw(weights, sample);
  const Corpus& corpus = corpora_[draw.member];
  // Each epoch has an offset of its own, so that windows do not cut the text at the same places
  // again, and an order of its own.
  const std::uint64_t epoch = draw.before / corpus.windows;
  const Key key = Key(seed_).child("sample order").child(draw.member).child(epoch);
  const std::uint64_t offset = key.child("offset").below(0, corpus.offsets);
  const std::uint64_t window =
      Permutation(key.child("order"), corpus.windows)[draw.before % corpus.windows];
  return {draw.member, epoch, offset + window * length_};
}

void SampleCursor::fill(const Sample& sample, std::span<std::int64_t> out) const {
  SHOAL_USER_CHECK(out.size() == length_ + 1, "data", "room for {} tokens; a sample has {}",
                   out.size(), length_ + 1);
  corpora_.at(sample.corpus).tokens->copy(sample.start, out);
}

}  // namespace shoal::data
