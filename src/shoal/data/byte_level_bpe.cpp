#include "shoal/data/byte_level_bpe.h"

#include <queue>
#include <tuple>

#include "shoal/base/check.h"

namespace shoal::data {

/// A token within a word that is being merged. Its neighbours are positions; -1 is the border.
struct BpeSymbol {
  std::uint32_t id;
  std::int64_t previous, next;
  bool merged_away = false;
};

namespace {

/// A pair that may be merged: the lowest rank first, of equal ranks the leftmost.
struct Candidate {
  std::uint32_t rank;
  std::int64_t position;
  std::uint32_t result;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

}  // namespace

ByteLevelBpe::ByteLevelBpe(const std::vector<std::string>& pieces,
                           const std::vector<BpeMerge>& merges, const Options& options)
    : options_(options) {
  token_of_byte_.fill(-1);
  for (std::uint32_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].size() == 1) token_of_byte_[static_cast<unsigned char>(pieces[id][0])] = id;
    if (options.whole_words && !pieces[id].empty()) words_[pieces[id]] = id;
  }
  // Of a pair that stands twice the later one counts, as in Hugging Face's tokenizers.
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    merges_[std::uint64_t{merge.left} << 32 | merge.right] = {rank, merge.result};
  }
}

std::vector<BpeSymbol> ByteLevelBpe::symbols_of(std::string_view word) const {
  std::vector<BpeSymbol> symbols;
  symbols.reserve(word.size());
  bool after_unknown = false;
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    const bool known = token_of_byte_[byte] >= 0;
    if (!known && !options_.unknown) {
      throw Error(ErrorKind::kData, "tokenizer",
                  fmt::format("the tokenizer has no token for byte 0x{:02x}, which the text holds, "
                              "and none for the unknown",
                              byte));
    }
    const bool fused = !known && after_unknown && options_.fuse_unknown;
    after_unknown = !known;
    if (fused) continue;
    const auto position = static_cast<std::int64_t>(symbols.size());
    symbols.push_back({known ? static_cast<std::uint32_t>(token_of_byte_[byte]) : *options_.unknown,
                       position - 1, position + 1});
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void ByteLevelBpe::encode(std::string_view word, std::vector<std::uint32_t>& ids) const {
  if (!words_.empty()) {
    if (const auto whole = words_.find(std::string(word)); whole != words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  std::vector<BpeSymbol> symbols = symbols_of(word);
  const auto size = static_cast<std::int64_t>(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](std::int64_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    if (const RankedMerge* merge = merge_of(symbols[left].id, symbols[symbols[left].next].id))
      queue.push({merge->rank, left, merge->result});
  };
  for (std::int64_t i = 0; i + 1 < size; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    BpeSymbol& left = symbols[best.position];
    if (left.merged_away || left.next < 0) continue;
    BpeSymbol& right = symbols[left.next];
    // A neighbour may have changed since the pair was proposed; what it is now was proposed anew.
    const RankedMerge* merge = merge_of(left.id, right.id);
    if (!merge || merge->result != best.result) continue;
    left.id = best.result;
    left.next = right.next;
    right.merged_away = true;
    if (right.next >= 0) symbols[right.next].previous = best.position;
    propose(left.previous);
    propose(best.position);
  }
  for (std::int64_t i = size > 0 ? 0 : -1; i >= 0; i = symbols[i].next)
    ids.push_back(symbols[i].id);
}

}  // namespace shoal::data
