#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace shoal::apps {

/// Returns a check for options of unsigned types, which would read text such as -1 as a number near
/// 2^64.
inline CLI::Validator not_negative() {
  return {[](std::string& text) {
            return std::string(text.starts_with('-') ? "must not be negative" : "");
          },
          "NONNEGATIVE"};
}

}  // namespace shoal::apps
