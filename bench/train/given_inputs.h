#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/module.h"
#include "shoal/train/data_source.h"

namespace shoal::bench {

/// Fills a GPT-2 model from a file of float32 as bench/peers/torch_gpt2.py --init reads it:
/// parameters in its order, query, key and value of all heads one after the other. Throws
/// Error(input missing), or Error(data) when the file has another size.
void load_weights(nn::Model& model, const std::string& path);

/// Tokens as torch_gpt2.py --tokens reads them: int32, step by step, rank by rank, `batch` x
/// (`columns` + 1).
class GivenTokens {
 public:
  GivenTokens(const std::string& path, int world, std::int64_t batch, std::int64_t columns);

  train::Batch batch(std::int64_t step, int rank) const;  ///< throws Error(data) past the end

 private:
  std::vector<std::int32_t> tokens_;
  int world_;
  std::int64_t batch_, columns_;
};

}  // namespace shoal::bench
