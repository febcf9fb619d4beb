#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace shoal::apps {

/// A check for options without a sign: text such as -1 would be read as a number near 2^64.
inline CLI::Validator not_negative() {
  return {[](std::string& text) {
            return std::string(text.starts_with('-') ? "must not be negative" : "");
          },
          "NONNEGATIVE"};
}

}  // namespace shoal::apps
