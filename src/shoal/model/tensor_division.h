#pragma once

#include <cstdint>
#include <vector>

namespace shoal::model {

/// How tensor-parallel ranks hold an activation [B, T, features] where it passes from one module to
/// the next.
enum class Boundary : std::uint8_t {
  kStream,     ///< rows as the residual stream divides them: samples, or columns
  kReplicate,  ///< every rank has all
  kFeatures,   ///< all rows, an even part of the features: shard(-1)
  kPartial,    ///< a summand of all: what a product with divided columns gives
};

/// Returns among how many of `ranks` ranks the elements of an activation are divided.
double parts_at(Boundary boundary, double ranks);

/// How tensor-parallel ranks divide a linear layer. What it needs says how its weight lies: rows of
/// the stream are multiplied by a whole one, all rows and features by some of its rows, and some
/// features by some of its columns.
///
///   input --move--> needs, the product, computes --move--> output
struct DividedLinear {
  Boundary input = Boundary::kStream;
  Boundary needs = Boundary::kStream;
  Boundary computes = Boundary::kStream;
  Boundary output = Boundary::kStream;

  static DividedLinear rows();     ///< cut: all rows of the stream to some features of each
  static DividedLinear columns();  ///< cut: some features to rows of the stream

  bool weight_cut() const { return needs != Boundary::kStream; }
  bool bias_cut() const {
    return computes == Boundary::kFeatures ||
           (computes == Boundary::kPartial && output == Boundary::kFeatures);
  }
  bool moves_input() const { return input != needs; }
  bool moves_output() const { return computes != output; }
  /// True for a layer whose only move is the sum into the stream: a layer that is computed again
  /// has its result, and does not sum again.
  bool sums_alone() const {
    return !moves_input() && computes == Boundary::kPartial && output == Boundary::kStream;
  }
  /// True for a layer whose result moves otherwise: computed again, it has its product, and moves
  /// that again.
  bool moves_product() const { return moves_output() && !sums_alone(); }
  bool operator==(const DividedLinear&) const = default;
};

/// How tensor-parallel ranks divide a block; the defaults are those of the default recipe. Layers
/// that a block does not have count nowhere. The norms give what the layers behind them read, and
/// `gate` and `up` agree in input and output.
struct BlockDivision {
  DividedLinear qkv = DividedLinear::rows();
  DividedLinear out = DividedLinear::columns();
  DividedLinear gate = DividedLinear::rows();
  DividedLinear up = DividedLinear::rows();
  DividedLinear down = DividedLinear::columns();
  /// Both projections of attention are whole: where the ranks divide the samples, nothing moves
  /// between them.
  bool own_samples = false;

  bool operator==(const BlockDivision&) const = default;
};

/// How tensor-parallel ranks divide a transformer, as far as its planning must know: what a recipe
/// says, in the form of sizes (parallel/recipe/division.h makes it).
struct TensorDivision {
  bool tokens_cut = true;  ///< the token table, by vocabulary
  bool output_cut = true;  ///< the output layer, by vocabulary
  std::vector<BlockDivision> blocks;

  bool operator==(const TensorDivision&) const = default;
};

}  // namespace shoal::model
