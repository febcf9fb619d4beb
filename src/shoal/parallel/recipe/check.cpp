#include "shoal/parallel/recipe/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/name_pattern.h"
#include "shoal/base/nearest.h"
#include "shoal/parallel/recipe/default_recipe.h"
#include "shoal/parallel/recipe/transfer.h"
#include "shoal/plan/degrees.h"

namespace shoal::parallel {
namespace {

/// Returns the first rule that fits a path; null when there is none.
const Rule* first_fit(const Recipe& recipe, const std::string& path) {
  for (const Rule& rule : recipe)
    if (fits_pattern(rule.module, path)) return &rule;
  return nullptr;
}

/// Every path, and with the number of its block left open.
std::vector<std::string> known_patterns(const std::vector<LeafModule>& modules) {
  std::vector<std::string> patterns;
  for (const LeafModule& module : modules) {
    patterns.push_back(module.path);
    if (!module.path.starts_with("blocks.")) continue;
    patterns.push_back("blocks.*" + module.path.substr(module.path.find('.', 7)));
  }
  return patterns;
}

[[noreturn]] void reject_pattern(const Rule& rule, const std::string& what,
                                 const std::string& hint) {
  throw Error(ErrorKind::kConfig, "recipe", fmt::format("\"{}\": {} along tp", text_of(rule), what))
      .hint(hint);
}

void check_patterns(const Recipe& recipe, const std::vector<LeafModule>& modules) {
  for (const Rule& rule : recipe) {
    bool fitted = false;
    bool counts = false;
    for (const LeafModule& module : modules) {
      if (!fits_pattern(rule.module, module.path)) continue;
      fitted = true;
      counts = counts || first_fit(recipe, module.path) == &rule;
    }
    if (fitted && !counts) {
      reject_pattern(rule, "would never count: rules before it fit all of its modules",
                     "the first rule that fits a module counts: write the special ones first");
    }
    if (fitted) continue;
    const bool holder = std::any_of(modules.begin(), modules.end(), [&](const LeafModule& module) {
      return fits_pattern(rule.module + ".*", module.path);
    });
    if (holder) {
      reject_pattern(rule, "fits a module that has no parameters of its own to divide",
                     fmt::format("write {}.* for those inside it", rule.module));
    }
    const std::string near = nearest(rule.module, known_patterns(modules));
    reject_pattern(rule, "fits no module of the model to divide",
                   near.empty() ? fmt::format("one is called {}", modules.front().path)
                                : fmt::format("did you mean {}?", near));
  }
}

/// State of the check while modules are placed one after the other.
class Placer {
 public:
  Placer(const Recipe& recipe, const model::ModelSpec& spec, std::int64_t tp)
      : recipe_(recipe), spec_(spec), tp_(tp) {}

  std::vector<PlacedModule> run() {
    const std::vector<LeafModule> modules = leaf_modules(spec_);
    check_patterns(recipe_, modules);
    // Edges are checked through pointers into the list: it may not grow any more.
    list_.reserve(modules.size());
    for (const LeafModule& module : modules) list_.push_back(placed(module));
    check_tie();
    check_stream_end("embedding.tokens");
    for (std::int64_t block = 0; block < spec_.layers; ++block) {
      check_attention(fmt::format("blocks.{}", block));
      check_mlp(fmt::format("blocks.{}", block));
    }
    feed("head.norm", {"head.output"});
    return std::move(list_);
  }

 private:
  const Rule* rule_of(const std::string& path) const { return first_fit(recipe_, path); }
  bool says_input(const std::string& path) const {
    return rule_of(path) != nullptr && rule_of(path)->input.has_value();
  }
  bool says_output(const std::string& path) const {
    return rule_of(path) != nullptr && rule_of(path)->output.has_value();
  }

  bool has(const std::string& path) const {
    return std::any_of(list_.begin(), list_.end(),
                       [&](const PlacedModule& one) { return one.module.path == path; });
  }

  PlacedModule& at(const std::string& path) {
    return *std::find_if(list_.begin(), list_.end(),
                         [&](const PlacedModule& one) { return one.module.path == path; });
  }

  [[noreturn]] void fail(const std::string& path, const std::string& what,
                         const std::string& hint) const {
    throw Error(ErrorKind::kConfig, "recipe", fmt::format("{}: tp = {}: {}", path, tp_, what))
        .hint(hint);
  }

  PlacedModule placed(const LeafModule& module) const {
    const Rule* rule = rule_of(module.path);
    static const Recipe kDefault = default_recipe();
    PlacedModule result{.module = module, .parameters = {}};
    result.parameters["weight"] = first_fit(kDefault, module.path)->parameters.at("weight");
    if (rule != nullptr) {
      for (const auto& [parameter, placement] : rule->parameters) {
        if (!module.parameters.contains(parameter)) {
          fail(module.path,
               fmt::format("has no {} that \"{}\" could place", parameter, rule->module),
               "leave it out");
        }
        result.parameters[parameter] = placement;
      }
    }
    transfer(result, rule, tp_);
    check_divisors(result);
    return result;
  }

  void require_divisor(const PlacedModule& one, const char* what, std::int64_t count) const {
    if (count % tp_ == 0) return;
    fail(one.module.path,
         fmt::format("must divide {} = {}, as {} does", what, count,
                     plan::nearest_divisors(count, tp_)),
         fmt::format("take another degree, or write {}: weight replicate", one.module.path));
  }

  void check_divisors(const PlacedModule& one) const {
    const Placement weight = one.weight();
    if (weight.kind != Placement::Kind::kShard) return;
    const std::string last = one.module.last_name();
    if (one.module.kind != ModuleKind::kLinear) {
      // Cut in parts as even as possible: vocabularies are seldom round.
      if (spec_.vocab < tp_) {
        fail(one.module.path, fmt::format("is more than the vocabulary of {}", spec_.vocab),
             fmt::format("write {}: weight replicate", one.module.path));
      }
      return;
    }
    if (last == "qkv" && weight.dim == 0) return check_heads(one);
    if (last == "out" && weight.dim == 1) return require_divisor(one, "heads", spec_.heads);
    const bool inner = (last == "down") == (weight.dim == 1);
    const bool of_mlp = last != "qkv" && last != "out";
    require_divisor(one,
                    of_mlp && inner   ? "ffn"
                    : weight.dim == 0 ? "its rows"
                                      : "its columns",
                    one.module.parameters.at("weight")[static_cast<std::size_t>(weight.dim)]);
  }

  /// The rows of qkv lie by key-value head. With more ranks than such heads some share one.
  void check_heads(const PlacedModule& one) const {
    require_divisor(one, "heads", spec_.heads);
    if (spec_.kv_heads % tp_ == 0) return;
    if (tp_ % spec_.kv_heads != 0) {
      fail(one.module.path,
           fmt::format("must divide kv_heads = {} or be a multiple of them", spec_.kv_heads),
           fmt::format("take tp = {}, or write {}: weight replicate",
                       plan::nearest_divisors(spec_.kv_heads, tp_), one.module.path));
    }
    const std::int64_t sharing = tp_ / spec_.kv_heads;
    const std::int64_t group = (spec_.heads / spec_.kv_heads + 2) * spec_.head_size;
    if (group % sharing != 0) {
      fail(one.module.path,
           fmt::format("lets {} ranks share a key-value head, whose {} rows they do not divide",
                       sharing, group),
           fmt::format("write {}: weight replicate", one.module.path));
    }
    if (one.input != Boundary::kReplicate || one.output != Boundary::kFeatures) {
      fail(one.module.path,
           fmt::format("more ranks than kv_heads = {} share heads, which reads replicate and gives "
                       "shard(-1), not {} and {}",
                       spec_.kv_heads, name(one.input), name(one.output)),
           "leave input and output out");
    }
  }

  void check_tie() {
    if (!spec_.tied_embeddings) return;
    const Placement table = at("embedding.tokens").weight();
    const Placement output = at("head.output").weight();
    if (table == output) return;
    fail("head.output",
         fmt::format("its weight is that of embedding.tokens (tied embeddings), and cannot be {} "
                     "here and {} there",
                     output.text(), table.text()),
         fmt::format("write both: \"embedding.tokens: weight {}\", \"head.output: weight {}\"",
                     table.text(), table.text()));
  }

  /// An output that joins the residual stream lies as the stream does; a partial sum is summed into
  /// it.
  void check_stream_end(const std::string& path) {
    PlacedModule& one = at(path);
    if (one.output == Boundary::kPartial) one.output = Boundary::kStream;
    if (one.output == Boundary::kStream) return;
    fail(
        path,
        fmt::format("gives {}, and the residual stream that it joins is always divided: every rank "
                    "would add the same",
                    name(one.output)),
        fmt::format("write {}: output stream", path));
  }

  /// Checks the edge from `from`, which gives `given`, to a module.
  void check_edge(const std::string& from, Boundary given, const std::string& to,
                  const std::string& rule) {
    const PlacedModule& one = at(to);
    if (one.input == given) return;
    fail(to,
         fmt::format("weight {} reads {}, and {} gives {}: {}", one.weight().text(),
                     name(one.input), from, name(given), rule),
         fmt::format("place both alike, or write {}: input {}, with which it redistributes", to,
                     name(given)));
  }

  /// The edges from a norm, which gives what the modules behind it read unless a rule says more.
  void feed(const std::string& norm, const std::vector<std::string>& readers) {
    PlacedModule& one = at(norm);
    if (!says_output(norm)) {
      const Boundary wanted = at(readers.front()).input;
      one.output = wanted == Boundary::kReplicate ? wanted : Boundary::kStream;
    }
    for (const std::string& reader : readers)
      check_edge(norm, one.output, reader, "a redistribution is missing");
  }

  void check_attention(const std::string& block) {
    const std::string qkv_path = block + ".attention.qkv";
    const std::string out_path = block + ".attention.out";
    PlacedModule& qkv = at(qkv_path);
    PlacedModule& out = at(out_path);
    const bool heads_divide = spec_.kv_heads % tp_ == 0;
    const bool replicated =
        qkv.weight() == Placement::replicate() && out.weight() == Placement::replicate();
    if (replicated && !says_output(qkv_path) && !says_input(out_path)) {
      // Rows of the stream in and out. Attention itself mixes the tokens of a sample: its heads are
      // exchanged for rows, or where they do not divide all of them gathered.
      qkv.output = out.input = heads_divide ? Boundary::kFeatures : Boundary::kReplicate;
      qkv.own_samples = out.own_samples = true;
    }
    feed(block + ".norm_1", {qkv_path});
    const std::string core = block + ".attention";
    if (qkv.output == Boundary::kStream || qkv.output == Boundary::kPartial) {
      fail(qkv_path,
           fmt::format("gives {}, and attention needs {}", name(qkv.output),
                       qkv.output == Boundary::kStream
                           ? "all tokens of a sample: a row layer lacks its column layer"
                           : "sums: the softmax of a partial sum is no part of the softmax"),
           fmt::format("write {}: output {}, or weight shard(0)", qkv_path,
                       heads_divide ? "shard(-1)" : "replicate"));
    }
    const bool by_heads = qkv.output == Boundary::kFeatures;
    if (by_heads && !heads_divide && qkv.weight() != Placement::shard(0)) {
      fail(
          qkv_path,
          fmt::format("output shard(-1) needs a degree that divides kv_heads = {}", spec_.kv_heads),
          fmt::format("write {}: output replicate", qkv_path));
    }
    check_edge(core, qkv.output, out_path, "a column layer and a row layer go together");
    check_stream_end(out_path);
  }

  void check_mlp(const std::string& block) {
    const std::string up_path = block + ".mlp.up";
    const std::string gate_path = block + ".mlp.gate";
    const std::string down_path = block + ".mlp.down";
    if (!has(up_path)) {
      // A mixture of experts takes rows of the stream.
      check_stream_end(block + ".norm_2");
      return;
    }
    PlacedModule& up = at(up_path);
    std::vector<std::string> readers{up_path};
    if (spec_.gated) readers.insert(readers.begin(), gate_path);
    for (const std::string& path : readers) {
      const Boundary given = at(path).output;
      if (given == Boundary::kStream || given == Boundary::kFeatures) continue;
      fail(path,
           fmt::format("gives {} to the activation: {}", name(given),
                       given == Boundary::kPartial
                           ? "that of a partial sum is no part of that of the sum"
                           : "it would compute the same on all ranks"),
           fmt::format("write {}: output shard(-1), or output stream", path));
    }
    if (spec_.gated && at(gate_path).output != up.output) {
      fail(gate_path,
           fmt::format("gives {}, and {} gives {}: they are multiplied element by element",
                       name(at(gate_path).output), up_path, name(up.output)),
           "place gate and up alike");
    }
    feed(block + ".norm_2", readers);
    check_edge(up_path, up.output, down_path, "a column layer and a row layer go together");
    check_stream_end(down_path);
  }

  const Recipe& recipe_;
  const model::ModelSpec& spec_;
  std::int64_t tp_;
  std::vector<PlacedModule> list_;
};

}  // namespace

std::vector<PlacedModule> check_recipe(const Recipe& recipe, const model::ModelSpec& spec,
                                       std::int64_t tp) {
  return Placer(recipe, spec, tp).run();
}

}  // namespace shoal::parallel
