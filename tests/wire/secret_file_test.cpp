#include "shoal/wire/secret_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/error_of.h"

namespace shoal::wire::secret_file_test {
namespace {

using testing::HasSubstr;

TEST(SecretFile, IsItsTextWithoutTheSpaceAtItsEnd) {
  const std::string file = testing::TempDir() + "secret_file_test-" + std::to_string(getpid());
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_secret(file, "elastic.key_file", "make one");
  };
  EXPECT_EQ(read("a secret"), "a secret");
  EXPECT_EQ(read(" a secret \r\n\n"), " a secret");
  const Error empty = error_of([&] { read(" \n"); });
  EXPECT_EQ(empty.kind(), ErrorKind::kConfig);
  EXPECT_THAT(empty.what(), HasSubstr("elastic.key_file: " + file + " is empty"));
  EXPECT_EQ(empty.hint(), "make one");
  std::remove(file.c_str());
  const Error missing = error_of([&] { read_secret(file, "elastic.key_file", "make one"); });
  EXPECT_EQ(missing.kind(), ErrorKind::kInputMissing);
  EXPECT_THAT(missing.what(), HasSubstr("elastic.key_file: cannot read " + file));
}

}  // namespace
}  // namespace shoal::wire::secret_file_test
