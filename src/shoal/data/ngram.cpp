#include "shoal/data/ngram.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "shoal/base/check.h"
#include "shoal/base/hash.h"

namespace shoal::data {
namespace {

constexpr int kRounds =
    30;  // of EM; the likelihood changes by less than 1e-5 bits a token long before
constexpr std::size_t kHeldOut = 10;  // every tenth part

/// The hash of a history grows towards the past, so that those of all lengths come from one pass.
std::uint64_t extend(std::uint64_t hash, std::uint32_t older) {
  return mix_bits(hash + older + 0x9e3779b97f4a7c15u);
}
std::uint64_t ngram_key(std::uint64_t history, std::uint32_t token) {
  // The lowest bit is set because key 0 marks a free slot.
  return mix_bits(history ^ (token + 1) * 0xd6e8feb86659fd93u) | 1;
}

int bucket_of(std::uint32_t count) {
  return std::min<int>(std::bit_width(count), NgramModel::kBuckets - 1);
}

/// Calls visit(k, history hash, token index) for each of the tokens [begin, end) of `tokens` and
/// every order k that it has a whole history for.
template <class Visit>
void visit_histories(std::span<const std::uint32_t> tokens, std::size_t begin, std::size_t end,
                     std::uint32_t end_of_document, int order, Visit visit) {
  for (std::size_t i = begin; i < end; ++i) {
    std::uint64_t hash = 0;
    visit(1, hash, i);
    for (std::size_t back = 1; back < static_cast<std::size_t>(order) && back <= i + 1; ++back) {
      // Before the first token stands an end of document that is not stored; nothing lies before
      // one.
      const std::uint32_t older = back == i + 1 ? end_of_document : tokens[i - back];
      hash = extend(hash, older);
      visit(static_cast<int>(back) + 1, hash, i);
      if (older == end_of_document) break;
    }
  }
}

/// Cuts a text into parts, of which every tenth will be held out: documents, or tenths of the text
/// when there are few of them.
std::vector<std::size_t> part_ends(const TokenText& text) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < text.tokens.size(); ++i) {
    if (text.tokens[i] == text.end_of_document || i + 1 == text.tokens.size())
      ends.push_back(i + 1);
  }
  if (ends.size() >= 2 * kHeldOut) return ends;
  ends.clear();
  for (std::size_t part = 1; part <= kHeldOut; ++part)
    ends.push_back(text.tokens.size() * part / kHeldOut);
  return ends;
}

}  // namespace

void NgramModel::Counter::add(std::uint64_t key) {
  // At most half full: linear probing stays short.
  if (2 * (used_ + 1) > slots_.size()) grow();
  std::size_t at = key & (slots_.size() - 1);
  while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  used_ += slots_[at].key == 0;
  slots_[at].key = key;
  ++slots_[at].count;
}

std::uint32_t NgramModel::Counter::operator[](std::uint64_t key) const {
  if (slots_.empty()) return 0;
  std::size_t at = key & (slots_.size() - 1);
  while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  return slots_[at].key == key ? slots_[at].count : 0;
}

void NgramModel::Counter::grow() {
  std::vector<Slot> old(std::max<std::size_t>(1024, 2 * slots_.size()));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key == 0) continue;
    std::size_t at = slot.key & (slots_.size() - 1);
    while (slots_[at].key != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

NgramModel::NgramModel(const TokenText& text, int order)
    : order_(order),
      vocab_size_(text.vocab_size),
      end_of_document_(text.end_of_document),
      ngrams_(order),
      histories_(order),
      weights_(order, std::vector<double>(kBuckets, 0.5)) {
  SHOAL_USER_CHECK(order >= 1 && vocab_size_ >= 1, "n-gram",
                   "order {}, {} tokens in the vocabulary", order, vocab_size_);
  if (text.tokens.empty()) throw Error(ErrorKind::kData, "n-gram", "there is no text to count");
  for (auto& weights : weights_) weights[0] = 0;
  std::vector<Range> counted;
  std::vector<Range> held_out;
  std::size_t begin = 0;
  for (const std::size_t end : part_ends(text)) {
    // The weights are tuned on text that was not counted: on counted text the longest history
    // always wins.
    const bool hold_out = (counted.size() + held_out.size()) % kHeldOut == kHeldOut - 1;
    (hold_out ? held_out : counted).push_back({begin, end});
    begin = end;
  }
  // Nine tenths are counted and the weights tuned on the rest; then the rest is counted too, with
  // the weights as they are.
  for (const Range& range : counted) count(text, range);
  tune(text, held_out);
  for (const Range& range : held_out) count(text, range);
}

void NgramModel::count(const TokenText& text, Range range) {
  visit_histories(text.tokens, range.begin, range.end, end_of_document_, order_,
                  [&](int k, std::uint64_t history, std::size_t i) {
                    ngrams_[k - 1].add(ngram_key(history, text.tokens[i]));
                    histories_[k - 1].add(history | 1);
                  });
}

std::vector<NgramModel::Estimate> NgramModel::estimates(const TokenText& text, Range range) const {
  std::vector<Estimate> all((range.end - range.begin) * order_, Estimate{0, 0});
  visit_histories(text.tokens, range.begin, range.end, end_of_document_, order_,
                  [&](int k, std::uint64_t history, std::size_t i) {
                    const std::uint32_t seen = histories_[k - 1][history | 1];
                    // An order without the history stays {0, bucket 0}: mix() passes it over.
                    if (seen == 0) return;
                    const std::uint32_t together =
                        ngrams_[k - 1][ngram_key(history, text.tokens[i])];
                    all[(i - range.begin) * order_ + k - 1] = {static_cast<double>(together) / seen,
                                                               bucket_of(seen)};
                  });
  return all;
}

double NgramModel::mix(const Estimate* estimates) const {
  // From the uniform distribution up: each order mixes its estimate with that of the shorter
  // histories. An order that has not seen the history has weight 0 (bucket 0).
  double probability = 1.0 / vocab_size_;
  for (int k = 0; k < order_; ++k) {
    const double weight = weights_[k][estimates[k].bucket];
    probability = weight * estimates[k].likelihood + (1 - weight) * probability;
  }
  return probability;
}

void NgramModel::tune(const TokenText& text, const std::vector<Range>& held_out) {
  std::vector<Estimate> all;
  for (const Range& range : held_out) {
    const auto part = estimates(text, range);
    all.insert(all.end(), part.begin(), part.end());
  }
  for (int round = 0; round < kRounds; ++round) {
    // How often, in expectation, the walk from the longest history down stopped at an order and how
    // often it came by.
    std::vector<std::vector<double>> stopped(order_, std::vector<double>(kBuckets));
    std::vector<std::vector<double>> came(stopped);
    for (const Estimate* at = all.data(); at != all.data() + all.size(); at += order_) {
      double below = 1.0 / vocab_size_;
      std::vector<double> lower(order_);  // P_{k-1}
      for (int k = 0; k < order_; ++k) {
        // P_{k-1} of this token, from the bottom up; the pass below goes from the top down.
        lower[k] = below;
        const double weight = weights_[k][at[k].bucket];
        below = weight * at[k].likelihood + (1 - weight) * below;
      }
      double reach = 1;
      for (int k = order_ - 1; k >= 0; --k) {
        const double weight = weights_[k][at[k].bucket];
        const double here = weight * at[k].likelihood;
        // E-step: the probability that the token came from order k, given that the walk reached it.
        const double share = here / (here + (1 - weight) * lower[k]);
        stopped[k][at[k].bucket] += reach * share;
        came[k][at[k].bucket] += reach;
        reach *= 1 - share;
      }
    }
    for (int k = 0; k < order_; ++k) {
      for (int bucket = 1; bucket < kBuckets; ++bucket) {
        // M-step: the weight is the share of walks that stopped. Below 1, so that shorter histories
        // keep some part.
        if (came[k][bucket] > 0)
          weights_[k][bucket] = std::min(stopped[k][bucket] / came[k][bucket], 1 - 1e-6);
      }
    }
  }
  // A bucket that the held-out text never came by takes the weight of the one below.
  std::vector<std::vector<bool>> met(order_, std::vector<bool>(kBuckets));
  for (std::size_t i = 0; i < all.size(); ++i) met[i % order_][all[i].bucket] = true;
  for (int k = 0; k < order_; ++k) {
    for (int bucket = 2; bucket < kBuckets; ++bucket)
      if (!met[k][bucket]) weights_[k][bucket] = weights_[k][bucket - 1];
  }
}

double NgramModel::bits(const TokenText& text) const {
  const auto all = estimates(text, {0, text.tokens.size()});
  double sum = 0;
  for (std::size_t i = 0; i < text.tokens.size(); ++i) sum -= std::log2(mix(&all[i * order_]));
  return sum;
}

double NgramModel::probability(std::span<const std::uint32_t> history, std::uint32_t token) const {
  std::vector<std::uint32_t> tokens(history.begin(), history.end());
  tokens.push_back(token);
  return mix(
      estimates({tokens, vocab_size_, end_of_document_}, {history.size(), tokens.size()}).data());
}

}  // namespace shoal::data
