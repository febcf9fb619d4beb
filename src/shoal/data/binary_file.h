#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/data/corpus.h"

namespace shoal::data {

/// Returns why a file is taken for a binary one, by its first 8 KiB: "NUL bytes", or "not UTF-8"
/// where more than a tenth of them is no part of a UTF-8 character. Empty for text; a text with a
/// few bytes of another encoding is text.
std::string binary_reason(std::string_view content);

/// A file that was left out, and why.
struct BinaryFile {
  std::string name, reason;
  std::uint64_t bytes = 0;
};

/// Removes the documents that are binary and returns them, in the order of the corpus.
std::vector<BinaryFile> remove_binary_files(std::vector<Document>& documents);

}  // namespace shoal::data
