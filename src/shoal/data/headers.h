#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::data {

/// One line of the pinned list: a file below the include folder and what it must hold.
struct PinnedFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// Returns the text of headers.list: comment lines that start with '#', then `crc32 bytes path`.
std::string_view pinned_header_list();

/// Returns the files of a pinned list. Throws Error(data) with the line that does not parse.
std::vector<PinnedFile> parse_pinned_list(std::string_view text);

/// Returns a header without the guard that the wheel's packaging puts around every header, with the
/// same first line and the same last three lines:
/// `#if !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)` ... `#else`, `#error "..."`,
/// `#endif  // ...`. A text without it is left as it is.
std::string_view without_packaging_guard(std::string_view text);

/// Returns the include folder of the Torch that this build was compiled against; empty in a build
/// without Torch.
std::string default_header_folder();

}  // namespace shoal::data
