#include "shoal/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "shoal/base/check.h"
#include "shoal/base/system_error.h"

namespace shoal::error_test {
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

TEST(Error, TheFirstRankAndPeerAreNamedAndWhatIsUnknownIsNot) {
  EXPECT_STREQ(Error(ErrorKind::kData, "read", "it is short").at(0, 2).from(0).what(),
               "[read] it is short (rank 0 of 2, peer 0)");
  EXPECT_STREQ(Error(ErrorKind::kData, "read", "it is short").in(1).awaiting("rank 7").what(),
               "[read] it is short (operation #1, awaiting rank 7)");
  const Error bare(ErrorKind::kData, "read", "it is short");
  EXPECT_STREQ(bare.what(), "[read] it is short");
  EXPECT_EQ(bare.rank(), -1);
  EXPECT_EQ(bare.size(), -1);
  EXPECT_EQ(bare.peer(), -1);
  EXPECT_EQ(bare.sequence(), 0u);
}

// The codes are those of sysexits.h where one fits: launchers and job files of users rely on them.
TEST(Error, EveryKindHasItsNameAndExitCode) {
  const struct {
    ErrorKind kind;
    const char* name;
    int code;
  } rows[] = {{ErrorKind::kInternal, "internal", 1},
              {ErrorKind::kUsage, "usage", 2},
              {ErrorKind::kConfig, "config", 78},
              {ErrorKind::kData, "data", 65},
              {ErrorKind::kInputMissing, "input missing", 66},
              {ErrorKind::kOutput, "output", 74},
              {ErrorKind::kNonFinite, "non-finite", 80},
              {ErrorKind::kResource, "resource", 81},
              {ErrorKind::kTimeout, "timeout", 201},
              {ErrorKind::kPeerLost, "peer lost", 202},
              {ErrorKind::kMismatch, "mismatch", 1},
              {ErrorKind::kAborted, "aborted", 1}};
  for (const auto& row : rows) {
    EXPECT_STREQ(name(row.kind), row.name);
    EXPECT_EQ(exit_code(row.kind), row.code) << row.name;
  }
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
}  // namespace shoal::error_test
