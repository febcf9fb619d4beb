#include "shoal/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "shoal/base/check.h"
#include "shoal/base/system_error.h"

namespace shoal {
namespace {

TEST(Error, SaysWhatWhereWhoAndWhatToDo) {
  const Error error = Error(ErrorKind::kTimeout, "all_reduce", "no answer in 30 s")
                          .at(1, 4)
                          .from(3)
                          .in(412)
                          .hint("look at rank 3's log");
  EXPECT_STREQ(error.what(),
               "[all_reduce] no answer in 30 s (rank 1 of 4, peer 3, operation #412). Hint: look "
               "at rank 3's log");
  EXPECT_EQ(exit_code(error.kind()), 201);
}

TEST(Error, ChecksTellTheCallersMistakeFromOurs) {
  try {
    SHOAL_USER_CHECK(1 > 2, "split", "color={}", 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "[split] color=5");
  }
  try {
    SHOAL_CHECK(1 > 2, "value {}", 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("1 > 2 does not hold: value 7"), std::string::npos);
  }
}

TEST(Error, SystemErrorsKeepTheirWords) {
  errno = ENOSPC;
  EXPECT_STREQ(system_error(ErrorKind::kOutput, "save", "cannot write x").what(),
               "[save] cannot write x: No space left on device (errno 28)");
}

}  // namespace
}  // namespace shoal
