// What a rank makes of bytes that no encode has written.
#include "shoal/collective/codec/coded_exchange.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "shoal/base/error.h"
#include "tests/error_of.h"

namespace shoal::collective::coded_exchange_test {
namespace {

TEST(CodedExchange, NamesTheRankWhoseBytesNoEncodeWrites) {
  std::vector<float> values(3 * 32, 1);
  CodedExchange exchange({.kind = Kind::kAllReduce,
                          .type = ElementType::kF32,
                          .buffer = {values.data(), values.data(), values.size()},
                          .coding = {Codec::kI8, true, 32, Key()}},
                         1, 3);
  // Zeros, or the same with a negative unit.
  const auto arrives = [&](Range range, bool broken) {
    std::memset(exchange.at(range.begin), 0, range.size());
    if (broken) *exchange.at(range.begin + 1) = std::byte{0x80};
  };
  const auto expect_from = [&](int peer, const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.size(), 3);
    EXPECT_EQ(error.peer(), peer);
  };
  arrives(exchange.slot(0), false);
  arrives(exchange.slot(2), true);
  expect_from(2, error_of([&] { exchange.add_up(); }));
  arrives(exchange.slot(2), false);
  exchange.add_up();
  arrives(exchange.sum(0), true);
  arrives(exchange.sum(2), false);
  expect_from(0, error_of([&] { exchange.finish(); }));
}

}  // namespace
}  // namespace shoal::collective::coded_exchange_test
