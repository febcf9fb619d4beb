#include "shoal/data/corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "shoal/base/check.h"
#include "shoal/base/for_each_index.h"
#include "shoal/base/philox.h"
#include "shoal/data/file.h"

namespace shoal::data {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

InputFile input_file(std::string name, const fs::path& path) {
  const auto modified = fs::last_write_time(path).time_since_epoch();
  return {std::move(name), path, fs::file_size(path),
          std::chrono::duration_cast<std::chrono::nanoseconds>(modified).count()};
}

void find_below(const fs::path& folder, const std::vector<std::string>& suffixes,
                std::vector<InputFile>& files) {
  // Names begin with the folder's own name: they are part of the fingerprint, which must not depend
  // on where the folder lies.
  const fs::path above = fs::canonical(folder).parent_path();
  for (auto it = fs::recursive_directory_iterator(fs::canonical(folder));
       it != fs::recursive_directory_iterator(); ++it) {
    // What begins with a dot is no text of the corpus (.git, editors' files); such folders are not
    // entered.
    if (hidden(it->path())) {
      if (it->is_directory()) it.disable_recursion_pending();
      continue;
    }
    const std::string path = it->path();
    const auto ends_so = [&](const std::string& suffix) { return path.ends_with(suffix); };
    if (!it->is_regular_file() ||
        (!suffixes.empty() && std::none_of(suffixes.begin(), suffixes.end(), ends_so)))
      continue;
    files.push_back(input_file(it->path().lexically_relative(above), it->path()));
  }
}

}  // namespace

std::vector<InputFile> find_files(const std::vector<std::string>& inputs,
                                  const std::vector<std::string>& suffixes) {
  std::vector<InputFile> files;
  try {
    for (const std::string& input : inputs) {
      if (!fs::exists(input)) {
        throw Error(ErrorKind::kInputMissing, "data prepare",
                    fmt::format("there is no file or folder {}", input));
      }
      if (fs::is_directory(input)) {
        find_below(input, suffixes, files);
      } else {
        files.push_back(input_file(fs::path(input).filename(), input));
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::kData, "data prepare",
                fmt::format("cannot list {}: {}", error.path1().string(), error.code().message()));
  }
  if (files.empty()) {
    const std::string where = fmt::format("{}", fmt::join(inputs, ", "));
    throw Error(
        ErrorKind::kData, "data prepare",
        suffixes.empty()
            ? fmt::format("{}: no file is there (names that begin with a dot do not count)", where)
            : fmt::format("{}: no file ends in {}", where, fmt::join(suffixes, " or ")));
  }
  // The order of a directory is the file system's; sorted names give the same data set everywhere.
  std::sort(files.begin(), files.end(),
            [](const InputFile& a, const InputFile& b) { return a.name < b.name; });
  // Names are keys of the split and of the manifest: two files of one name could not be told apart.
  const auto twin =
      std::adjacent_find(files.begin(), files.end(),
                         [](const InputFile& a, const InputFile& b) { return a.name == b.name; });
  if (twin != files.end()) {
    throw Error(
        ErrorKind::kData, "data prepare",
        fmt::format("{} and {} would both be called {}", twin->path, (twin + 1)->path, twin->name))
        .hint("name each input once, or the folder that holds both");
  }
  return files;
}

std::vector<InputFile> find_pinned(const std::string& folder,
                                   const std::vector<PinnedFile>& pinned) {
  constexpr const char* kHint =
      "the header corpus is that of the torch 2.11.0 wheel from PyPI; name its include folder, or "
      "prepare your own files with --input";
  if (!fs::is_directory(folder)) {
    throw Error(ErrorKind::kInputMissing, "data prepare",
                fmt::format("the include folder of Torch is not there: '{}'", folder))
        .hint(kHint);
  }
  std::vector<InputFile> files;
  for (const PinnedFile& want : pinned) {
    const std::string path = folder + "/" + want.path;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) {
      throw Error(ErrorKind::kInputMissing, "data prepare",
                  fmt::format("{} is missing; it is in the pinned list of headers", path))
          .hint(kHint);
    }
    files.push_back(input_file(want.path, path));
    // Sizes are compared before anything is read; checksums follow in check_pinned.
    if (files.back().bytes != want.bytes) {
      throw Error(ErrorKind::kData, "data prepare",
                  fmt::format("{} has {} bytes; the pinned list of headers says {}", path,
                              files.back().bytes, want.bytes))
          .hint(kHint);
    }
  }
  return files;
}

std::vector<Document> read_documents(const std::vector<InputFile>& files, int threads) {
  std::vector<Document> documents(files.size());
  for_each_index(files.size(), threads, [&](std::size_t i) {
    documents[i] = {files[i].name, read_file(files[i].path)};
  });
  return documents;
}

void check_pinned(const std::vector<Document>& documents, const std::vector<PinnedFile>& pinned) {
  SHOAL_CHECK(documents.size() == pinned.size(), "{} documents, {} pinned", documents.size(),
              pinned.size());
  std::size_t differ = 0;
  std::size_t first = 0;
  // Backwards, so that `first` ends as the first one that differs.
  for (std::size_t i = documents.size(); i-- > 0;)
    if (crc32(documents[i].text) != pinned[i].crc32) ++differ, first = i;
  if (differ == 0) return;
  throw Error(ErrorKind::kData, "data prepare",
              fmt::format("{} of {} headers are not those of the pinned list, the first is {}: "
                          "CRC-32 {:08x} where the list says {:08x}",
                          differ, pinned.size(), documents[first].name,
                          crc32(documents[first].text), pinned[first].crc32))
      .hint(
          "the header corpus is that of the torch 2.11.0 wheel from PyPI; install it anew, or "
          "prepare your own files with --input");
}

Split split_documents(std::vector<Document> documents, double fraction, std::uint64_t seed) {
  SHOAL_USER_CHECK(fraction >= 0 && fraction < 1, "data prepare",
                   "a validation fraction of {}; allowed is 0 to less than 1", fraction);
  Split split;
  if (fraction == 0) return {std::move(documents), {}};
  if (documents.size() == 1) {
    auto& [name, text] = documents[0];
    // A single document is cut at a line end near the wanted place.
    const auto wanted = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - fraction));
    const std::size_t line_end = text.rfind('\n', wanted);
    const std::size_t cut = line_end == std::string::npos ? wanted : line_end + 1;
    if (cut < text.size()) split.validation.push_back({name, text.substr(cut)});
    text.resize(cut);
    if (!text.empty()) split.train.push_back(std::move(documents[0]));
    return split;
  }
  // A draw by name alone: a file keeps its side when others are added or removed. The smallest and
  // the largest draw change sides only where a side would be empty.
  const Key key = Key(seed).child("validation split");
  std::vector<double> draws;
  for (const Document& document : documents) draws.push_back(key.child(document.name).uniform(0));
  const auto [least, most] = std::minmax_element(draws.begin(), draws.end());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const bool validation = &draws[i] == &*least || (&draws[i] != &*most && draws[i] < fraction);
    (validation ? split.validation : split.train).push_back(std::move(documents[i]));
  }
  return split;
}

}  // namespace shoal::data
