#include "shoal/base/instruction_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdlib>

#include "shoal/base/plain_loops.h"
#include "tests/error_text.h"

namespace shoal::instruction_sets_test {
namespace {

using testing::HasSubstr;

/// Runs `body` in a process of its own and expects that it is true there: a limit cannot be taken
/// back.
template <class Body>
void expect_in_child(Body body) {
  EXPECT_EXIT(std::exit(body() ? 0 : 1), testing::ExitedWithCode(0), "");
}

void forget_variables() {
  for (const char* name :
       {"ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"})
    ::unsetenv(name);
}

TEST(InstructionSets, RefuseAnUnknownLimitWithTheList) {
  const std::string said = error_text([] { limit_instruction_sets("avx3"); });
  EXPECT_THAT(said, HasSubstr("SHOAL_CPU is \"avx3\""));
  for (const std::string& name : instruction_set_limits()) EXPECT_THAT(said, HasSubstr(name));
}

// `shoal replay` limits itself to the set that a run names.
TEST(InstructionSets, TheSetInUseIsALimit) {
  expect_in_child([] {
    forget_variables();
    const std::string own = instruction_set_in_use();
    limit_instruction_sets(own);
    return instruction_set_in_use() == own;
  });
}

#if defined(__x86_64__)
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST(InstructionSets, ThePortableLimitHoldsForAll) {
  expect_in_child([] {
    forget_variables();
    limit_instruction_sets("portable");
    return instruction_set_in_use() == "portable" && !avx512_bf16_usable() &&
           variable("ATEN_CPU_CAPABILITY") == "default";
  });
}

TEST(InstructionSets, AVariableThatTheUserSetStays) {
  expect_in_child([] {
    forget_variables();
    ::setenv("ATEN_CPU_CAPABILITY", "avx2", 1);
    limit_instruction_sets("portable");
    return variable("ATEN_CPU_CAPABILITY") == "avx2";
  });
}

TEST(InstructionSets, LimitsAreListedWidestFirst) {
  EXPECT_EQ(instruction_set_limits(),
            (std::vector<std::string>{"avx512_bf16", "avx512", "avx2", "sse4", "portable"}));
}

// What LibTorch, MKL and oneDNN are told. The processor of this test has all that they may use.
TEST(InstructionSets, EveryLibraryIsToldTheLimit) {
  const struct {
    const char* limit;
    const char* aten;
    const char* mkl;
    const char* branch;
    const char* onednn;
  } rows[] = {{"avx512_bf16", "", "", "", ""},
              {"avx512", "avx512", "AVX512", "", "AVX512_CORE"},
              {"avx2", "avx2", "AVX2", "AVX2,STRICT", "AVX2"},
              {"sse4", "default", "SSE4_2", "COMPATIBLE", "SSE41"},
              {"portable", "default", "SSE4_2", "COMPATIBLE", "SSE41"}};
  for (const auto& row : rows) {
    expect_in_child([&] {
      forget_variables();
      hwy::SetSupportedTargetsForTest(HWY_AVX3 | HWY_AVX3_DL | HWY_AVX2 | HWY_SSE4);
      limit_instruction_sets(row.limit);
      return variable("ATEN_CPU_CAPABILITY") == row.aten &&
             variable("MKL_ENABLE_INSTRUCTIONS") == row.mkl && variable("MKL_CBWR") == row.branch &&
             variable("ONEDNN_MAX_CPU_ISA") == row.onednn;
    });
  }
}

TEST(InstructionSets, RepeatableProductsAreAskedForInTheWidestSetInUse) {
  const struct {
    std::int64_t targets;
    const char* branch;
  } rows[] = {{HWY_AVX3 | HWY_AVX2 | HWY_SSE4, "AVX512,STRICT"},
              {HWY_AVX2 | HWY_SSE4, "AVX2,STRICT"},
              {HWY_SSE4, ""}};
  for (const auto& row : rows) {
    expect_in_child([&] {
      forget_variables();
      hwy::SetSupportedTargetsForTest(row.targets);
      limit_instruction_sets("avx512_bf16");
      ask_for_repeatable_products();
      return variable("MKL_CBWR") == row.branch;
    });
  }
  // A later limit replaces what this process has set, and nothing that the user has.
  expect_in_child([] {
    forget_variables();
    hwy::SetSupportedTargetsForTest(HWY_AVX3 | HWY_AVX2 | HWY_SSE4);
    ask_for_repeatable_products();
    limit_instruction_sets("avx2");
    return variable("MKL_CBWR") == "AVX2,STRICT" && variable("ATEN_CPU_CAPABILITY") == "avx2";
  });
  expect_in_child([] {
    ::setenv("MKL_CBWR", "SSE4_1", 1);
    limit_instruction_sets("avx2");
    ask_for_repeatable_products();
    return variable("MKL_CBWR") == "SSE4_1";
  });
}

TEST(InstructionSets, ALimitIsWhatIsInUseWhereTheProcessorHasIt) {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  for (const auto& [limit, has] : {std::pair{"avx512", avx512},
                                   {"avx2", avx2},
                                   {"sse4", bool{__builtin_cpu_supports("sse4.2") > 0}}}) {
    if (!has || variable("SHOAL_CPU") != "") continue;
    // A lambda of C++20 captures no structured binding with every compiler.
    expect_in_child([&, wanted = limit] {
      limit_instruction_sets(wanted);
      return instruction_set_in_use() == wanted && !avx512_bf16_usable();
    });
  }
}

// A vector has four floats with SSE, eight with AVX2 and sixteen with AVX-512; the portable code
// has vectors of one or of four, by the compiler. Each round of this kernel makes twelve
// multiplications and additions of a vector.
TEST(InstructionSets, KernelsRunWithWhatIsInUse) {
  for (const std::string& limit : instruction_set_limits()) {
    expect_in_child([&] {
      limit_instruction_sets(limit);
      const std::string in_use = instruction_set_in_use();
      float result = 0;
      const double floats = plain_loops::multiply_add(10, &result) / (10 * 12 * 2);
      if (in_use.starts_with("avx512")) return floats == 16;
      if (in_use == "avx2") return floats == 8;
      return floats == 4 || (in_use == "portable" && floats == 1);
    });
  }
}

// LibTorch believes the variable and would execute instructions that are not there.
TEST(InstructionSets, LibTorchIsToldOfNothingThatTheProcessorLacks) {
  for (const char* limit : {"avx512", "avx2"}) {
    expect_in_child([&] {
      ::unsetenv("ATEN_CPU_CAPABILITY");
      hwy::SetSupportedTargetsForTest(HWY_SSE4);
      limit_instruction_sets(limit);
      return variable("ATEN_CPU_CAPABILITY").empty();
    });
  }
}
#endif

}  // namespace
}  // namespace shoal::instruction_sets_test
