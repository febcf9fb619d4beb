#pragma once

#include <string>
#include <vector>

namespace shoal::parallel {

/// The default recipe of a GPT-2, as rules of `layouts`.
inline const std::vector<std::string> kDefaultRules{"embedding.tokens: weight shard(0)",
                                                    "*.attention.qkv: weight shard(0)",
                                                    "*.attention.out: weight shard(1)",
                                                    "*.mlp.up: weight shard(0)",
                                                    "*.mlp.down: weight shard(1)",
                                                    "head.output: weight shard(0)",
                                                    "*: weight replicate"};

}  // namespace shoal::parallel
