#include "shoal/base/instruction_sets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwy/detect_targets.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "shoal/base/error.h"

namespace shoal {
namespace {

/// One limit: the targets of Highway beyond it, and what the libraries are told.
struct Limit {
  const char* name;
  std::int64_t disabled;
  const char* aten;    ///< ATEN_CPU_CAPABILITY
  const char* mkl;     ///< MKL_ENABLE_INSTRUCTIONS, which MKL heeds on Intel's processors
  const char* branch;  ///< MKL_CBWR, which it heeds on all
  const char* onednn;  ///< ONEDNN_MAX_CPU_ISA
};

#if HWY_ARCH_X86
/// All targets beyond AVX2, whatever this Highway calls them: a better one has a lower bit.
constexpr std::int64_t kAvx512 = HWY_AVX2 - 1;
constexpr std::array kLimits{
    Limit{"avx512_bf16", 0, nullptr, nullptr, nullptr, nullptr},
    Limit{"avx512", 0, "avx512", "AVX512", nullptr, "AVX512_CORE"},
    Limit{"avx2", kAvx512, "avx2", "AVX2", "AVX2,STRICT", "AVX2"},
    Limit{"sse4", kAvx512 | HWY_AVX2, "default", "SSE4_2", "COMPATIBLE", "SSE41"},
    Limit{"portable", ~std::int64_t{HWY_EMU128 | HWY_SCALAR}, "default", "SSE4_2", "COMPATIBLE",
          "SSE41"},
};
#elif HWY_ARCH_ARM_A64
/// Every such processor has NEON, so Highway compiles nothing below it.
constexpr std::array kLimits{Limit{"neon", 0, nullptr, nullptr, nullptr, nullptr}};
#else
constexpr std::array kLimits{
    Limit{"portable", ~std::int64_t{HWY_EMU128 | HWY_SCALAR}, "default", nullptr, nullptr, nullptr},
};
#endif

/// A process has one processor and one limit, as it has one environment.
std::atomic<bool> bf16_allowed{true};

/// The targets that Highway chooses from; 0 until the first question.
std::atomic<std::int64_t> targets_in_use{0};

/// hwy::SupportedTargets chooses among all that the processor has, whatever is disabled, before it
/// answers; kernels would run with that choice. The answer is therefore made the choice again, and
/// asked for once, at the beginning of a process, while it has one thread.
std::int64_t choose_targets() {
  // The processor may have sets for which nothing is compiled.
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  hwy::GetChosenTarget().Update(targets);
  targets_in_use = targets;
  return targets;
}
std::int64_t targets() {
  const std::int64_t known = targets_in_use;
  return known != 0 ? known : choose_targets();
}

/// Tells whether a processor with these targets has what ATEN_CPU_CAPABILITY names.
bool allows(std::int64_t targets, std::string_view capability) {
#if HWY_ARCH_X86
  if (capability == "avx512") return (targets & kAvx512) != 0;
  if (capability == "avx2") return (targets & HWY_AVX2) != 0;
#endif
  return true;
}

/// The values that this process has set itself. A later limit may replace them.
std::map<std::string, std::string>& values_set_here() {
  static std::map<std::string, std::string> values;
  return values;
}

void set_unless_set(const char* variable, const char* value) {
  if (value == nullptr) return;
  const char* const now = std::getenv(variable);
  const auto own = values_set_here().find(variable);
  if (now != nullptr && (own == values_set_here().end() || own->second != now)) return;
  values_set_here()[variable] = value;
  ::setenv(variable, value, 1);
}

}  // namespace

std::vector<std::string> instruction_set_limits() {
  std::vector<std::string> names;
  for (const Limit& limit : kLimits) names.emplace_back(limit.name);
  return names;
}

void limit_instruction_sets(std::string_view name) {
  const auto limit = std::find_if(kLimits.begin(), kLimits.end(),
                                  [&](const Limit& one) { return one.name == name; });
  if (limit == kLimits.end()) {
    throw Error(ErrorKind::kUsage, "instruction sets",
                fmt::format("SHOAL_CPU is \"{}\"; it may be: {}", name,
                            fmt::join(instruction_set_limits(), ", ")));
  }
  // Highway has no target for AVX512-BF16, so that one limit is kept beside its table.
  bf16_allowed = limit->name == std::string_view("avx512_bf16");
  hwy::DisableTargets(limit->disabled);
  const std::int64_t allowed = choose_targets();
  // LibTorch believes the variable, whatever the processor has, and would execute what is not
  // there. Below a limit that the processor does not reach it chooses for itself.
  if (limit->aten != nullptr && allows(allowed, limit->aten))
    set_unless_set("ATEN_CPU_CAPABILITY", limit->aten);
  // The libraries read their variables when they are first used, so this must run before the first
  // product. A value that the user has set stays.
  set_unless_set("MKL_ENABLE_INSTRUCTIONS", limit->mkl);
  set_unless_set("MKL_CBWR", limit->branch);
  set_unless_set("ONEDNN_MAX_CPU_ISA", limit->onednn);
}

// Without STRICT, MKL's result may depend on the alignment of its matrices: two ranks that compute
// the same would then differ.
void ask_for_repeatable_products() {
#if HWY_ARCH_X86
  if ((targets() & kAvx512) != 0) {
    set_unless_set("MKL_CBWR", "AVX512,STRICT");
  } else if ((targets() & HWY_AVX2) != 0) {
    set_unless_set("MKL_CBWR", "AVX2,STRICT");
  }
#endif
}

bool avx512_bf16_usable() {
#if defined(__x86_64__)
  // Asked once: in a virtual machine the instruction that tells takes 20 us.
  static const bool present = __builtin_cpu_supports("avx512bf16") &&
                              __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl");
  return present && bf16_allowed;
#else
  return false;
#endif
}

std::string instruction_set_in_use() {
  // A target with a lower bit is the better one.
  const std::int64_t best = targets() & -targets();
  if ((best & (HWY_EMU128 | HWY_SCALAR)) != 0) return "portable";
#if HWY_ARCH_X86
  if (avx512_bf16_usable()) return "avx512_bf16";
  if ((best & kAvx512) != 0) return "avx512";
  if (best == HWY_AVX2) return "avx2";
  if (best == HWY_SSE4) return "sse4";
#elif HWY_ARCH_ARM_A64
  if (best == HWY_NEON) return "neon";
#endif
  return hwy::TargetName(best);
}

}  // namespace shoal
