#pragma once

#include <utf8proc.h>

#include <cstddef>
#include <string_view>

namespace shoal::data {

/// Returns the bytes of the UTF-8 character at the beginning of `text`, which is not empty; 0 where
/// it does not begin with one.
inline std::size_t utf8_length(std::string_view text) {
  if (static_cast<unsigned char>(text.front()) < 0x80) return 1;
  utf8proc_int32_t character;
  const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &character);
  return read > 0 ? static_cast<std::size_t>(read) : 0;
}

}  // namespace shoal::data
