#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

namespace shoal::testing {

/// The number of places where `part` stands in `text`.
inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

/// Fails unless docs/concepts/`name` is `picture`, which is then left in the tests' temporary
/// folder, to be looked at and copied.
inline void expect_picture_of_page(const std::string& name, const std::string& picture) {
  std::ifstream file(SHOAL_DOCS "/concepts/" + name);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  if (page == picture) return;
  const std::string made = ::testing::TempDir() + "/" + name;
  std::ofstream(made) << picture;
  ADD_FAILURE() << "docs/concepts/" << name << " is not what is drawn now. Look at " << made
                << " and copy it there";
}

}  // namespace shoal::testing
