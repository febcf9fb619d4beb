#include "shoal/data/headers.h"

#include "shoal/base/check.h"
#include "shoal/base/number.h"

namespace shoal::data {
namespace {

/// Cuts the next field, up to a blank, off the front of `line`.
std::string_view next_field(std::string_view& line) {
  const auto end = line.find(' ');
  const auto field = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return field;
}

}  // namespace

std::vector<PinnedFile> parse_pinned_list(std::string_view text) {
  std::vector<PinnedFile> files;
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line[0] == '#') continue;
    // The path is the rest of the line: it may hold blanks.
    const auto crc32 = parse_number<std::uint32_t>(next_field(line), 16);
    const auto bytes = parse_number<std::uint64_t>(next_field(line));
    if (!crc32 || !bytes || line.empty()) {
      throw Error(ErrorKind::kData, "data prepare",
                  fmt::format("file list, line {}: expected `crc32 bytes path`", number));
    }
    files.push_back({std::string(line), *bytes, *crc32});
  }
  return files;
}

// The same lines stand in thousands of files: a model would spend its tokens on them.
std::string_view without_packaging_guard(std::string_view text) {
  constexpr std::string_view kOpens =
      "#if !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)\n";
  constexpr std::string_view kCloses =
      "#else\n"
      "#error \"This file should not be included when either TORCH_STABLE_ONLY or "
      "TORCH_TARGET_VERSION is defined.\"\n"
      "#endif  // !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)\n";
  if (!text.starts_with(kOpens) || !text.ends_with(kCloses)) return text;
  text.remove_prefix(kOpens.size());
  text.remove_suffix(kCloses.size());
  return text;
}

std::string default_header_folder() {
#ifdef SHOAL_TORCH_INCLUDE
  return SHOAL_TORCH_INCLUDE;
#else
  return "";
#endif
}

}  // namespace shoal::data
