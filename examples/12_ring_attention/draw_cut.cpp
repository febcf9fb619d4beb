// Draws which rank computes what, for 16 columns of a sequence: draw_cut [ranks].
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace {
using Cut = shoal::mesh::Placement::Cut;
constexpr int kDrawn = 16;

/// Returns the rank that holds each column.
std::vector<int> owners(Cut cut, int ranks) {
  std::vector<int> owner(kDrawn);
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor own = shoal::parallel::columns_of(kDrawn, cut, ranks, rank);
    for (std::int64_t i = 0; i < own.numel(); ++i) owner[own[i].item<std::int64_t>()] = rank;
  }
  return owner;
}

/// A query as a line: the step of the ring in which it meets each key; `.`: never.
std::string line_of(const std::vector<int>& owner, int query, int ranks) {
  std::string line;
  for (int key = 0; key < kDrawn; ++key)
    line += key > query ? "." : fmt::format("{}", (owner[key] - owner[query] + ranks) % ranks);
  return fmt::format("    rank {} {}", owner[query], line);
}
}  // namespace

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  SHOAL_USER_CHECK(ranks > 0 && ranks <= 10, "draw_cut",
                   "the argument is a number of ranks up to 10");
  const std::vector<int> even = owners(Cut::kEven, ranks);
  const std::vector<int> zigzag = owners(Cut::kZigzag, ranks);
  fmt::print("    even                       zigzag\n");
  for (int query = 0; query < kDrawn; ++query)
    fmt::print("{}{}\n", line_of(even, query, ranks), line_of(zigzag, query, ranks));
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
