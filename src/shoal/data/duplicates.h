#pragma once

#include <cstdint>
#include <vector>

#include "shoal/data/corpus.h"

namespace shoal::data {

/// Documents count as near-duplicates from this similarity on: the Jaccard index of their sets of
/// eight consecutive words.
inline constexpr double kNearDuplicate = 0.7;

/// A summary of a document for the search for near-duplicates: made once, compared often.
struct DocumentSketch {
  std::vector<std::uint64_t> smallest;     ///< up to 256 smallest hashes of its shingles, ascending
  std::vector<std::uint64_t> band_hashes;  ///< hashes of 32 bands of 4 min-hashes
};

DocumentSketch sketch(std::string_view text);

/// Estimates the Jaccard index from the smallest hashes of the union (Bar-Yossef et al., 2002). The
/// result is exact for short documents.
double similarity(const DocumentSketch& a, const DocumentSketch& b);

/// Removes documents that are near-duplicates of an earlier one that stays: candidates share a band
/// of min-hashes (Broder, 1997; Leskovec et al., *Mining of Massive Datasets*, ch. 3), and are
/// compared by `similarity`. Returns the number of documents and bytes that it has removed.
struct Removed {
  std::uint64_t count = 0, bytes = 0;
};
Removed remove_near_duplicates(std::vector<Document>& documents, int threads);

/// Removes passages that also stand earlier, in the same or an earlier document. A passage is the
/// text between two blank lines, if it has at least 100 characters without indentation. Licence
/// texts and copied functions stay once, so that a validation text holds nothing that the model was
/// trained on (Lee et al., 2022), and a model does not learn to recite them. The rest of a document
/// does not change.
Removed remove_repeated_passages(std::vector<Document>& documents);

}  // namespace shoal::data
