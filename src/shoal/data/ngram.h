#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::data {

/// A text as documents of tokens: `tokens` one after another, each document closed by
/// `end_of_document`.
struct TokenText {
  std::span<const std::uint32_t> tokens;
  std::uint32_t vocab_size = 0;
  std::uint32_t end_of_document = 0;
};

/// An interpolated n-gram model (Jelinek and Mercer, 1980; Chen and Goodman, 1999, section 2.3):
///
///     P_k(w | h_k) = l_k(c(h_k)) c(h_k w) / c(h_k) + (1 - l_k(c(h_k))) P_{k-1}(w | h_{k-1})
///     P_0 = 1 / vocab_size
///
/// where h_k are the k - 1 tokens before w and c counts in the training text. The weights l_k
/// depend on how often the history was seen (one for every doubling) and maximise the likelihood of
/// a tenth of the training documents under counts of the other nine (EM), after which all of them
/// are counted. A history does not reach over the beginning of a document; the end-of-document
/// token before it belongs to it.
class NgramModel {
 public:
  /// Counts and tunes on `text`. `order` >= 1: 2 is a bigram. Throws Error(usage), Error(data) for
  /// a text without tokens.
  NgramModel(const TokenText& text, int order);

  int order() const { return order_; }
  /// Returns the sum of the bits that the model takes for the tokens of `text`.
  double bits(const TokenText& text) const;
  /// Returns P(w | history) by the formula above. The oldest token of the history comes first.
  double probability(std::span<const std::uint32_t> history, std::uint32_t token) const;

  static constexpr int kBuckets = 24;
  /// Returns l_k by the bucket of the history's count: index [k - 1][bucket]. Bucket 0 is for
  /// histories that were never seen.
  const std::vector<std::vector<double>>& weights() const { return weights_; }

 private:
  /// Counts by 64-bit hash of the tokens: open addressing, grown by doubling.
  class Counter {
   public:
    void add(std::uint64_t key);
    std::uint32_t operator[](std::uint64_t key) const;

   private:
    void grow();
    struct Slot {
      std::uint64_t key = 0;  // 0: free
      std::uint32_t count = 0;
    };
    std::vector<Slot> slots_;
    std::size_t used_ = 0;
  };
  struct Estimate {
    double likelihood;  // c(h w) / c(h); 0 for a history never seen
    int bucket;         // of c(h)
  };

  struct Range {
    std::size_t begin, end;
  };

  void count(const TokenText& text, Range range);
  void tune(const TokenText& text, const std::vector<Range>& held_out);
  std::vector<Estimate> estimates(const TokenText& text, Range range) const;  // [range, order]
  double mix(const Estimate* estimates) const;

  int order_;
  std::uint32_t vocab_size_, end_of_document_;
  std::vector<Counter> ngrams_, histories_;  // by k - 1
  std::vector<std::vector<double>> weights_;
};

}  // namespace shoal::data
