#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shoal::apps {

/// What a rank says about its failure, told to the launcher over a pipe before it ends.
struct LastWords {
  int code = 1;
  bool about_a_peer = false;  ///< the rank reports that another is lost or silent: not the first
                              ///< cause if there is another
  std::int64_t time_ns = 0;   ///< of the monotonic clock, which all processes of a host share
  std::string text;
};

/// Of an exception that ends a rank now.
LastWords words_of(const std::exception& error);

/// Writes them as one message, cut to what a pipe takes at once; a launcher that is gone is no
/// error.
void tell(int pipe, const LastWords& words);
/// What was told; empty when the rank ended without words. Does not wait.
std::optional<LastWords> heard(int pipe);

std::int64_t monotonic_ns();

}  // namespace shoal::apps
