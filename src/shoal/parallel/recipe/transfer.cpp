#include "shoal/parallel/recipe/transfer.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "shoal/base/error.h"

namespace shoal::parallel {
namespace {

using enum Boundary;

class Transfer {
 public:
  Transfer(PlacedModule& placed, const Rule* rule, std::int64_t tp) : placed_(placed), tp_(tp) {
    if (rule != nullptr) {
      says_input_ = rule->input;
      says_output_ = rule->output;
    }
  }

  void run() {
    check_weight();
    switch (placed_.module.kind) {
      case ModuleKind::kLinear:
        return linear();
      case ModuleKind::kEmbedding:
        return embedding();
      case ModuleKind::kOutput:
        return output();
      case ModuleKind::kNorm:
        return norm();
      case ModuleKind::kPositions:
        replicated("is added to rows of the stream, which every rank has whole");
        return fixed(kStream, kStream);
      case ModuleKind::kHeadNorm:
        replicated("is that of every head, and heads are divided, not their features");
        if (says_input_ || says_output_) {
          fail("works inside attention and has no input or output to place",
               "leave input and output out");
        }
        return;
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint) const {
    throw Error(ErrorKind::kConfig, "recipe",
                fmt::format("{}: tp = {}: {}", placed_.module.path, tp_, what))
        .hint(hint);
  }

  /// Counts dimensions from the first, and checks what any weight must be.
  void check_weight() {
    for (auto& [parameter, placement] : placed_.parameters) {
      if (placement.kind == Placement::Kind::kReplicate) continue;
      if (placement != Placement::shard(placement.dim)) {
        fail(fmt::format("{} {}: a parameter is replicated or cut evenly", parameter,
                         placement.text()),
             "write replicate, or shard(DIM)");
      }
      const auto dims = static_cast<int>(placed_.module.parameters.at(parameter).size());
      const int dim = placement.dim < 0 ? placement.dim + dims : placement.dim;
      if (dim < 0 || dim >= dims) {
        fail(fmt::format("{} {}, and it has {} dimensions", parameter, placement.text(), dims),
             dims == 1 ? "shard(0) is the only one" : "shard(0) cuts rows, shard(1) columns");
      }
      placement.dim = dim;
    }
  }

  void replicated(const std::string& why) {
    for (const auto& [parameter, placement] : placed_.parameters) {
      if (placement == Placement::replicate()) continue;
      fail(fmt::format("{} {}: {}", parameter, placement.text(), why),
           fmt::format("write {} replicate", parameter));
    }
    if (has_bias()) placed_.parameters["bias"] = Placement::replicate();
  }

  bool has_bias() const { return placed_.module.parameters.contains("bias"); }

  /// Places the bias where it belongs, or checks that it was.
  void bias(const Placement& wanted, const std::string& why) {
    if (!has_bias()) return;
    const auto said = placed_.parameters.find("bias");
    if (said != placed_.parameters.end() && said->second != wanted) {
      fail(fmt::format("bias {}: {}", said->second.text(), why),
           fmt::format("write bias {}, or leave it out", wanted.text()));
    }
    placed_.parameters["bias"] = wanted;
  }

  /// Input and output that are as they are.
  void fixed(Boundary input, Boundary output) {
    for (const auto& [what, said, only] :
         {std::tuple{"input", says_input_, input}, std::tuple{"output", says_output_, output}}) {
      if (said && *said != only) {
        fail(fmt::format("{} {}: it can be {} only", what, name(*said), name(only)),
             fmt::format("leave {} out", what));
      }
    }
    placed_.input = placed_.needs = input;
    placed_.computes = placed_.output = output;
  }

  void linear() {
    const Placement weight = placed_.weight();
    const bool whole = weight == Placement::replicate();
    const bool rows = weight == Placement::shard(0);
    if (whole) {
      placed_.needs = kStream;
      placed_.computes = kStream;
    } else {
      placed_.needs = rows ? kReplicate : kFeatures;
      placed_.computes = rows ? kFeatures : kPartial;
    }
    placed_.input = says_input_.value_or(placed_.needs);
    if (placed_.input == kPartial) {
      fail("input partial: only the residual stream sums what ranks give in parts",
           "write output stream, replicate or shard(-1) at the module before it");
    }
    // A partial sum is summed where it joins the stream.
    placed_.output = says_output_.value_or(placed_.computes);
    check_partial();
    if (whole) return bias(Placement::replicate(), "its rows have all features");
    if (rows) return bias(weight, "each rank adds it to its own features");
    // Behind the sum: on the parts, it would be counted once a rank.
    if (placed_.output == kFeatures)
      return bias(Placement::shard(0), "it is added behind the sum, to the rank's features");
    bias(Placement::replicate(),
         "it is added behind the sum of the parts, once, to rows with all features");
  }

  void embedding() {
    const Placement weight = placed_.weight();
    if (weight == Placement::shard(1)) {
      fail("weight shard(1): a table is cut by its rows, the vocabulary",
           "write weight shard(0), or weight replicate");
    }
    if (says_input_)
      fail("reads tokens, which every rank has: input cannot be placed", "leave input out");
    placed_.input = placed_.needs = kReplicate;
    // Cut rows: each rank looks up what it has, and the sum is everybody's. The whole table: each
    // looks up the tokens of its own rows.
    placed_.computes = weight == Placement::replicate() ? kStream : kPartial;
    placed_.output = says_output_.value_or(placed_.computes);
    check_partial();
  }

  /// A partial sum leaves only a module that computes one.
  void check_partial() const {
    if (placed_.output != kPartial || placed_.computes == kPartial) return;
    fail(fmt::format("output partial: weight {} gives {}, which is no sum over ranks",
                     placed_.weight().text(), name(placed_.computes)),
         "leave output out");
  }

  void output() {
    const Placement weight = placed_.weight();
    if (weight == Placement::shard(1)) {
      fail(
          "weight shard(1): logits would be partial sums, and the loss of a partial sum is no part "
          "of the loss",
          "write weight shard(0), or weight replicate");
    }
    if (says_output_)
      fail("gives the loss of this rank's rows: output cannot be placed", "leave output out");
    fixed(weight == Placement::replicate() ? kStream : kReplicate, kStream);
  }

  void norm() {
    replicated("a norm needs all features of a row, and each rank would have a part");
    placed_.input = placed_.needs = placed_.computes = kStream;
    if (says_input_ && *says_input_ != kStream) {
      fail(
          fmt::format("input {}: it reads the residual stream, which is always divided: every rank "
                      "would compute the same",
                      name(*says_input_)),
          "leave input out");
    }
    placed_.output = says_output_.value_or(kStream);
    if (placed_.output == kStream || placed_.output == kReplicate) return;
    fail(fmt::format("output {}: a norm gives its rows, or gathers all", name(placed_.output)),
         "write output stream, or output replicate");
  }

  PlacedModule& placed_;
  std::int64_t tp_;
  std::optional<Boundary> says_input_;
  std::optional<Boundary> says_output_;
};

}  // namespace

void transfer(PlacedModule& placed, const Rule* rule, std::int64_t tp) {
  Transfer(placed, rule, tp).run();
}

}  // namespace shoal::parallel
