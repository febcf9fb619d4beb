#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/data/headers.h"

namespace shoal::data {

/// A file to be read. `name` is its path in the dataset: that below the input folder, with the
/// folder's own name in front, so that it does not depend on where the folder lies.
struct InputFile {
  std::string name, path;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
};

/// One text of the corpus.
struct Document {
  std::string name, text;
};

/// Returns the files below `inputs` (files or folders), by name, without hidden files and folders.
/// With `suffixes` (".h", ".txt") it takes only files of a folder that end so; an input that is a
/// file itself is always taken. Throws Error(input missing) when an input does not exist and
/// Error(data) when two files would have one name or there is no file at all.
std::vector<InputFile> find_files(const std::vector<std::string>& inputs,
                                  const std::vector<std::string>& suffixes);

/// Returns the files of a pinned list below `folder`. Throws Error(input missing) when the folder
/// or a file is not there, Error(data) when one has another size.
std::vector<InputFile> find_pinned(const std::string& folder,
                                   const std::vector<PinnedFile>& pinned);

/// Reads the files, `threads` at a time, and returns them in their order, empty ones too.
std::vector<Document> read_documents(const std::vector<InputFile>& files, int threads);

/// Compares what was read with a pinned list of the same order. Throws Error(data), which names the
/// first file that differs and how many do.
void check_pinned(const std::vector<Document>& documents, const std::vector<PinnedFile>& pinned);

/// Train and validation documents, each in the order of the corpus.
struct Split {
  std::vector<Document> train, validation;
};

/// Puts about `fraction` of the documents, chosen by a hash of seed and name, into validation: a
/// file keeps its side when others are added. Two documents or more give both sides at least one. A
/// single document is cut at a line end instead, and its tail is the validation text.
Split split_documents(std::vector<Document> documents, double fraction, std::uint64_t seed);

}  // namespace shoal::data
