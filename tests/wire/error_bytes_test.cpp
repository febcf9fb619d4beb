#include "shoal/wire/error_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace shoal::wire::error_bytes_test {
namespace {

constexpr std::size_t kMostText = 16 << 10;

TEST(ErrorBytes, EveryPartArrives) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kAborted); ++kind) {
    const Error error = Error(static_cast<ErrorKind>(kind), "all_reduce", "what happened")
                            .at(3, 8)
                            .from(5)
                            .in(std::uint64_t{1} << 40)
                            .awaiting("rank 5")
                            .hint("look there");
    const Error read = decode_error(encode(error));
    EXPECT_EQ(read.kind(), error.kind());
    EXPECT_EQ(read.operation(), "all_reduce");
    EXPECT_EQ(read.message(), "what happened");
    EXPECT_EQ(read.rank(), 3);
    EXPECT_EQ(read.size(), 8);
    EXPECT_EQ(read.peer(), 5);
    EXPECT_EQ(read.sequence(), std::uint64_t{1} << 40);
    EXPECT_EQ(read.awaited(), "rank 5");
    EXPECT_EQ(read.hint(), "look there");
  }
}

TEST(ErrorBytes, LongTextsAreCut) {
  const std::string text(20'000, 'x');
  const Error read =
      decode_error(encode(Error(ErrorKind::kData, text, text).awaiting(text).hint(text)));
  EXPECT_EQ(read.kind(), ErrorKind::kData);
  for (const std::string& part : {read.operation(), read.message(), read.awaited(), read.hint()})
    EXPECT_EQ(part, text.substr(0, kMostText));
}

TEST(ErrorBytes, TextsAreCutWhereTheWholeIsTooLong) {
  constexpr std::size_t kMost = 16 << 10;
  const std::string text(kMost, 'x');
  const Error error = Error(ErrorKind::kData, "read", text).at(3, 8).hint("look there");
  const Bytes bytes = encode(error, kMost);
  EXPECT_LE(bytes.size(), kMost);
  const Error read = decode_error(bytes);
  EXPECT_EQ(read.rank(), 3);
  EXPECT_GT(read.message().size(), kMost / 5);
  EXPECT_EQ(read.hint(), "look there");
  const Error fits(ErrorKind::kData, "read", text.substr(0, kMost - 100));
  EXPECT_EQ(decode_error(encode(fits, kMost)).message(), fits.message());
}

TEST(ErrorBytes, WhatCannotBeReadIsAnAbortAllTheSame) {
  const Bytes good = encode(Error(ErrorKind::kData, "read", "the shard is truncated"));
  const auto refused = [](const Bytes& bytes) {
    const Error error = decode_error(bytes);
    return error.kind() == ErrorKind::kAborted &&
           error.message().find("cannot be read") != std::string::npos;
  };
  EXPECT_FALSE(refused(good));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_TRUE(refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes))))
        << bytes;
  Bytes unknown = good;
  unknown[0] = static_cast<std::byte>(static_cast<int>(ErrorKind::kAborted) + 1);
  EXPECT_TRUE(refused(unknown));
}

}  // namespace
}  // namespace shoal::wire::error_bytes_test
