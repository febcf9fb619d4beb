#pragma once

#include <cstddef>
#include <string_view>

namespace shoal::data {

/// The longest pre-token. It bounds the work of one merge and the size of the encoder's cache
/// entries.
inline constexpr std::size_t kLongestPretoken = 64;

/// Cuts the next pre-token off the front of `bytes` and returns it; tokens never cross its borders.
/// Any bytes at all are allowed, and the pre-tokens joined are the input.
///
/// The classes are those of GPT-2 (Radford et al., 2019), fitted to code: a word of letters,
/// digits, underscores and bytes from 0x80 up, or a run of other printable signs, each with one
/// leading blank if there is one; a run of blanks, tabs and line ends, which leaves its last blank
/// to the word that follows; a run of control bytes. A run longer than kLongestPretoken is cut
/// there.
std::string_view next_pretoken(std::string_view& bytes);

}  // namespace shoal::data
