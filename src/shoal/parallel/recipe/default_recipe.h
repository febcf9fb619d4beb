#pragma once

#include "shoal/parallel/recipe/rule.h"

namespace shoal::parallel {

/// Returns the recipe of Megatron-LM (Shoeybi et al., 2019) with sequence parallelism (Korthikanti
/// et al., 2022):
///
///   qkv, gate, up: rows cut; out, down: columns cut, summed into the stream; embedding and output:
///   vocabulary cut; everything else replicated
///
/// Every module that a transformer may have is in it. The outputs of norms are left out: they are
/// what the modules behind them read.
Recipe default_recipe();

}  // namespace shoal::parallel
