#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal {

/// Names of the limits, widest first: "avx512_bf16", "avx512", "avx2", "sse4", "portable" on
/// x86-64, "portable" elsewhere.
std::vector<std::string> instruction_set_limits();

/// Lets nothing in this process use instructions beyond `limit`, whatever the processor has:
/// Shoal's own kernels from the next call on; LibTorch, MKL and oneDNN through the environment
/// variables that they read at their first use, so the call stands at the beginning of main(), and
/// of several calls before that use the last one counts. A variable that the user has set stays as
/// it is. A limit above what the processor has changes nothing. LibTorch has no code below SSE2,
/// MKL and oneDNN none below SSE4.1: for "sse4" and "portable" they use the least that they have.
/// Throws Error(usage) with the list of limits for any other name. Not thread-safe.
///
/// Sums in norms, softmax and losses, and products without fused multiply-add, have other bits
/// under other instruction sets. Machines of different kinds compute the same bits under a limit
/// that all of them reach.
void limit_instruction_sets(std::string_view limit);

/// Asks MKL (MKL_CBWR, unless the user set it) for products whose bits do not depend on where the
/// matrices lie or on the number of threads, in the widest instruction set in use that it promises
/// this for: AVX-512 and AVX2. Call it behind the limit and before the first product.
void ask_for_repeatable_products();

/// True where the processor multiplies and adds pairs of bf16 (AVX512-BF16) and the limit lets it.
bool avx512_bf16_usable();

/// The widest set in use: a name of the list above, or Highway's name of another processor's.
std::string instruction_set_in_use();

}  // namespace shoal
