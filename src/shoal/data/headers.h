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

/// The text of headers.list: comment lines that start with '#', then `crc32 bytes path`.
std::string_view pinned_header_list();

/// The files of a pinned list. Throws Error(data) with the line that does not parse.
std::vector<PinnedFile> parse_pinned_list(std::string_view text);

/// The include folder of the Torch that this build was compiled against; empty in a build without Torch.
std::string default_header_folder();

}  // namespace shoal::data
