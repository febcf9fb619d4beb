// The main() of every test program: that of GoogleTest, under the instruction sets that SHOAL_CPU
// allows, and with the products that the program asks MKL for.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "shoal/base/error.h"
#include "shoal/base/instruction_sets.h"
#include "tests/test_limit.h"

int main(int count, char** words) {
  testing::InitGoogleMock(&count, words);
  if (const char* limit = std::getenv("SHOAL_CPU")) {
    try {
      shoal::limit_instruction_sets(limit);
    } catch (const shoal::Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      return shoal::exit_code(error.kind());
    }
  }
  shoal::ask_for_repeatable_products();
  shoal::end_stuck_tests();
  return RUN_ALL_TESTS();
}
