#include "shoal/data/duplicates.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "shoal/base/for_each_index.h"
#include "shoal/base/hash.h"

namespace shoal::data {
namespace {

// With b bands of r rows two documents of similarity s share a band with probability 1 - (1 -
// s^r)^b: 0.9998 at 0.7, 0.23 at 0.3.
constexpr int kShingleWords = 8, kBands = 32, kRows = 4;
constexpr std::size_t kSketch = 256;
constexpr std::size_t kShortestPassage = 100;

/// The offset basis of FNV-1a.
constexpr std::uint64_t kHashStart = 0xcbf29ce484222325u;
std::uint64_t add_byte(std::uint64_t hash, char byte) {
  return (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
}  // FNV-1a

bool blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80);
}

/// Hashes of the words and single signs of a text; white space does not count.
std::vector<std::uint64_t> word_hashes(std::string_view text) {
  std::vector<std::uint64_t> words;
  for (std::size_t i = 0; i < text.size();) {
    if (blank(text[i])) {
      ++i;
      continue;
    }
    // A word, or a sign by itself: formatting does not make documents differ.
    std::uint64_t hash = add_byte(kHashStart, text[i]);
    if (in_word(text[i++]))
      while (i < text.size() && in_word(text[i])) hash = add_byte(hash, text[i++]);
    words.push_back(mix_bits(hash));
  }
  return words;
}

std::vector<std::uint64_t> shingles(std::string_view text) {
  const auto words = word_hashes(text);
  std::vector<std::uint64_t> result;
  // A document of fewer words than a shingle is one shingle.
  const std::size_t length = std::min<std::size_t>(kShingleWords, words.size());
  for (std::size_t i = 0; length > 0 && i + length <= words.size(); ++i) {
    std::uint64_t hash = 0;
    for (std::size_t k = 0; k < length; ++k)
      hash = mix_bits(hash + words[i + k] + 0x9e3779b97f4a7c15u);
    result.push_back(hash);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

/// A passage without indentation and line ends, hashed; 0 when it is too short to count.
std::uint64_t passage_hash(std::string_view passage) {
  std::uint64_t hash = kHashStart;
  std::size_t signs = 0;
  for (const char c : passage)
    if (!blank(c)) hash = add_byte(hash, c), ++signs;
  return signs < kShortestPassage ? 0 : mix_bits(hash) | 1;
}

/// The next passage with the blank lines behind it, cut off the front of `text`.
std::string_view next_passage(std::string_view& text) {
  std::size_t end = 0;
  bool seen_text = false;
  bool after_blank_line = false;
  while (end < text.size()) {
    const std::size_t line_end = std::min(text.find('\n', end), text.size() - 1) + 1;
    const auto line = text.substr(end, line_end - end);
    const bool blank_line = std::all_of(line.begin(), line.end(), blank);
    // A passage ends before the first line behind its blank lines: passages joined are the text.
    if (!blank_line && seen_text && after_blank_line) break;
    seen_text |= !blank_line;
    after_blank_line = blank_line;
    end = line_end;
  }
  const auto passage = text.substr(0, end);
  text.remove_prefix(end);
  return passage;
}

}  // namespace

DocumentSketch sketch(std::string_view text) {
  const auto all = shingles(text);
  DocumentSketch result;
  std::array<std::uint64_t, kBands * kRows> least;
  least.fill(std::numeric_limits<std::uint64_t>::max());
  for (const std::uint64_t shingle : all) {
    // One hash function for each min-hash, made of one mixer and 128 different summands.
    for (std::size_t i = 0; i < least.size(); ++i)
      least[i] = std::min(least[i], mix_bits(shingle + (i + 1) * 0x9e3779b97f4a7c15u));
  }
  // Documents whose four minima of a band agree are candidates; only these are compared.
  for (int band = 0; band < kBands; ++band) {
    std::uint64_t hash = band + 1;
    for (int row = 0; row < kRows; ++row) hash = mix_bits(hash + least[band * kRows + row]);
    result.band_hashes.push_back(hash);
  }
  result.smallest.assign(all.begin(), all.begin() + std::min(all.size(), kSketch));
  return result;
}

double similarity(const DocumentSketch& a, const DocumentSketch& b) {
  std::size_t both = 0;
  std::size_t either = 0;
  std::size_t i = 0;
  std::size_t j = 0;
  // Merges the two ascending lists: the smallest hashes of the union are a uniform sample of it,
  // and the share of them that is in both estimates the Jaccard index.
  while (either < kSketch && (i < a.smallest.size() || j < b.smallest.size())) {
    const bool from_a =
        j == b.smallest.size() || (i < a.smallest.size() && a.smallest[i] <= b.smallest[j]);
    const bool from_b =
        i == a.smallest.size() || (j < b.smallest.size() && b.smallest[j] <= a.smallest[i]);
    both += from_a && from_b;
    i += from_a;
    j += from_b;
    ++either;
  }
  return either == 0 ? 1 : static_cast<double>(both) / static_cast<double>(either);
}

Removed remove_near_duplicates(std::vector<Document>& documents, int threads) {
  std::vector<DocumentSketch> sketches(documents.size());
  for_each_index(documents.size(), threads,
                 [&](std::size_t i) { sketches[i] = sketch(documents[i].text); });
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> by_band;
  std::vector<Document> kept;
  Removed removed;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    // In the order of the corpus and by one thread: which of two twins stays must not depend on
    // threads.
    const auto alike = [&](std::size_t earlier) {
      return similarity(sketches[earlier], sketches[i]) >= kNearDuplicate;
    };
    const auto in_band = [&](std::uint64_t band) {
      return std::any_of(by_band[band].begin(), by_band[band].end(), alike);
    };
    if (std::any_of(sketches[i].band_hashes.begin(), sketches[i].band_hashes.end(), in_band)) {
      ++removed.count;
      removed.bytes += documents[i].text.size();
      continue;
    }
    // Only documents that stay are compared with: a chain of likes must not remove what is unlike
    // everything that stays.
    for (const std::uint64_t band : sketches[i].band_hashes) by_band[band].push_back(i);
    kept.push_back(std::move(documents[i]));
  }
  documents = std::move(kept);
  return removed;
}

Removed remove_repeated_passages(std::vector<Document>& documents) {
  std::unordered_set<std::uint64_t> seen;
  Removed removed;
  for (Document& document : documents) {
    std::string kept;
    for (std::string_view rest = document.text; !rest.empty();) {
      const std::string_view passage = next_passage(rest);
      const std::uint64_t hash = passage_hash(passage);
      // 0: too short to count, always kept
      if (hash == 0 || seen.insert(hash).second) {
        kept += passage;
      } else {
        ++removed.count;
        removed.bytes += passage.size();
      }
    }
    document.text = std::move(kept);
  }
  return removed;
}

}  // namespace shoal::data
