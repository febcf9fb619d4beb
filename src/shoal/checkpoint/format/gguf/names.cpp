#include "shoal/checkpoint/format/gguf/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/hugging_face_names.h"
#include "shoal/checkpoint/format/strict_json.h"

namespace shoal::checkpoint::format::gguf {
namespace {

using model::ModelSpec;

// Ours: what the tensor alone does not tell.
constexpr const char* kLowFrequency = "shoal.rope_scaling.low_frequency";
constexpr const char* kHighFrequency = "shoal.rope_scaling.high_frequency";
constexpr const char* kOriginalSequence = "shoal.rope_scaling.original_sequence";

[[noreturn]] void reject(const ModelSpec& spec, const std::string& why) {
  throw Error(
      ErrorKind::kConfig, "checkpoint",
      fmt::format("model '{}' is no gpt2, llama, qwen2 or qwen3 of GGUF: {}", spec.name, why));
}

std::string architecture_of(const ModelSpec& spec) {
  // What no family of Hugging Face has is refused there, with its reason.
  hugging_face_tensors(spec);
  if (spec.positions == model::Positions::kLearned) {
    if (spec.activation != model::Activation::kGeluTanh)
      reject(spec, "GPT-2's activation is gelu_tanh there");
    return "gpt2";
  }
  if (spec.activation != model::Activation::kSilu) reject(spec, "the activation is silu there");
  if (spec.router_score == model::RouterScore::kSigmoid && spec.experts > 0)
    reject(spec, "experts of DeepSeek-V3 with Llama's attention have no name there");
  std::string name = "llama";
  if (spec.qkv_bias) name = "qwen2";
  if (spec.qk_norm) name = "qwen3";
  if (name != "llama" && spec.rope_scaling.factor != 1)
    reject(spec, "stretched rotary frequencies go with llama there");
  return name;
}

/// Orders rows of whole heads for rotation of neighbours: element i of the first half of a head
/// comes before element i of the second.
std::vector<std::int64_t> paired(const std::vector<std::int64_t>& rows, std::int64_t head_size) {
  std::vector<std::int64_t> ordered;
  const auto count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t head = 0; head < count; head += head_size) {
    for (std::int64_t i = 0; i < head_size / 2; ++i) {
      ordered.push_back(rows[head + i]);
      ordered.push_back(rows[head + head_size / 2 + i]);
    }
  }
  return ordered;
}

/// The list of one model, block by block.
class Names {
 public:
  explicit Names(const ModelSpec& spec) : spec_(spec), architecture_(architecture_of(spec)) {}

  std::vector<SameTensor> all() {
    matrix("embedding.tokens.weight", "token_embd.weight", spec_.vocab, spec_.hidden);
    if (is_gpt2())
      matrix("embedding.positions.weight", "position_embd.weight", spec_.sequence, spec_.hidden);
    for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
      ours_ = fmt::format("blocks.{}.", layer);
      theirs_ = fmt::format("blk.{}.", layer);
      vectors("norm_1", "attn_norm", spec_.hidden);
      add_attention();
      vectors("norm_2", "ffn_norm", spec_.hidden);
      model::has_experts(spec_, layer) ? add_experts() : add_dense();
    }
    ours_ = theirs_ = "";
    vectors("head.norm", "output_norm", spec_.hidden);
    if (!spec_.tied_embeddings)
      matrix("head.output.weight", "output.weight", spec_.vocab, spec_.hidden);
    return list_.take();
  }

 private:
  bool is_gpt2() const { return architecture_ == "gpt2"; }

  void matrix(const std::string& ours, const std::string& theirs, std::int64_t rows,
              std::int64_t columns) {
    list_.add(ours_ + ours, theirs_ + theirs, rows, columns);
  }
  /// A norm, with its bias in GPT-2.
  void vectors(const std::string& ours, const std::string& theirs, std::int64_t size) {
    list_.add(ours_ + ours + ".weight", theirs_ + theirs + ".weight", size, 0);
    if (is_gpt2()) list_.add(ours_ + ours + ".bias", theirs_ + theirs + ".bias", size, 0);
  }
  void linear(const std::string& ours, const std::string& theirs,
              const std::vector<std::int64_t>& rows, std::int64_t columns, bool bias) {
    list_.part(ours_ + ours + ".weight", theirs_ + theirs + ".weight", rows, columns);
    if (bias) list_.part(ours_ + ours + ".bias", theirs_ + theirs + ".bias", rows, 0);
  }

  void add_attention() {
    std::vector<std::int64_t> all;
    for (const auto& [part, theirs] : {std::pair{AttentionPart::kQuery, "attn_q"},
                                       {AttentionPart::kKey, "attn_k"},
                                       {AttentionPart::kValue, "attn_v"}}) {
      std::vector<std::int64_t> rows = fused_rows(spec_, part);
      all.insert(all.end(), rows.begin(), rows.end());
      if (is_gpt2()) continue;
      const bool turned = part != AttentionPart::kValue && architecture_ == "llama";
      if (turned) rows = paired(rows, spec_.head_size);
      linear("attention.qkv", theirs, rows, spec_.hidden, spec_.qkv_bias);
    }
    if (is_gpt2()) linear("attention.qkv", "attn_qkv", all, spec_.hidden, true);
    if (spec_.qk_norm) {
      vectors("attention.query_norm", "attn_q_norm", spec_.head_size);
      vectors("attention.key_norm", "attn_k_norm", spec_.head_size);
    }
    linear("attention.out", "attn_output", row_range(0, spec_.hidden),
           spec_.heads * spec_.head_size, is_gpt2());
  }

  void add_dense() {
    if (!is_gpt2()) matrix("mlp.gate.weight", "ffn_gate.weight", spec_.ffn, spec_.hidden);
    linear("mlp.up", "ffn_up", row_range(0, spec_.ffn), spec_.hidden, is_gpt2());
    linear("mlp.down", "ffn_down", row_range(0, spec_.hidden), spec_.ffn, is_gpt2());
  }

  void add_experts() {
    matrix("mlp.router.weight", "ffn_gate_inp.weight", spec_.experts, spec_.hidden);
    const Shape wide{spec_.experts, spec_.ffn, spec_.hidden};
    list_.add(ours_ + "mlp.experts.gate.weight", theirs_ + "ffn_gate_exps.weight", wide);
    list_.add(ours_ + "mlp.experts.down.weight", theirs_ + "ffn_down_exps.weight",
              {spec_.experts, spec_.hidden, spec_.ffn});
    list_.add(ours_ + "mlp.experts.up.weight", theirs_ + "ffn_up_exps.weight", wide);
  }

  const ModelSpec& spec_;
  std::string architecture_, ours_, theirs_;
  TensorList list_;
};

/// Reads the keys of one architecture; what it was not asked for may change what the model
/// computes.
class Fields {
 public:
  explicit Fields(const Header& header)
      : metadata_(header.metadata),
        architecture_(metadata_.text("general.architecture").value_or("")) {}

  const std::string& architecture() const { return architecture_; }

  std::int64_t integer(const std::string& key) {
    const auto value = metadata_.integer(full(key));
    if (!value) throw broken(fmt::format("'{}'", metadata_.file()), full(key) + " is missing");
    return *value;
  }
  std::int64_t integer(const std::string& key, std::int64_t otherwise) {
    return metadata_.integer(full(key)).value_or(otherwise);
  }
  double real(const std::string& key, double otherwise) {
    return metadata_.real(full(key)).value_or(otherwise);
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    return metadata_.text(full(key)).value_or(otherwise);
  }
  [[noreturn]] void reject(const std::string& what) const {
    throw Error(ErrorKind::kConfig, "model", fmt::format("{}: {}", metadata_.file(), what));
  }
  /// Throws for a key with a value that Shoal's models do not have.
  void require(bool holds, const std::string& key, const std::string& rule) {
    if (!holds) reject(fmt::format("{} {}", full(key), rule));
  }
  /// Throws for the first key of the architecture that was not read.
  void no_others() const {
    for (const auto& [key, value] : metadata_.values()) {
      if (key.starts_with(architecture_ + ".") && !read_.contains(key))
        reject(fmt::format("key {} is not supported", key));
    }
  }

 private:
  std::string full(const std::string& key) {
    std::string name = architecture_ + "." + key;
    read_.insert(name);
    return name;
  }

  const Metadata& metadata_;
  std::string architecture_;
  std::set<std::string> read_;
};

ModelSpec read_gpt2(Fields& fields) {
  ModelSpec spec;
  spec.norm_epsilon = fields.real("attention.layer_norm_epsilon", 1e-5);
  return spec;
}

ModelSpec read_rotary(Fields& fields) {
  ModelSpec spec;
  spec.bias = false;
  spec.gated = true;
  spec.positions = model::Positions::kRotary;
  spec.norm = model::Norm::kRms;
  spec.activation = model::Activation::kSilu;
  spec.norm_epsilon = fields.real("attention.layer_norm_rms_epsilon", 1e-5);
  spec.qkv_bias = fields.architecture() == "qwen2";
  spec.qk_norm = fields.architecture() == "qwen3";
  spec.rope_theta = fields.real("rope.freq_base", 10000);
  spec.head_size = fields.integer("attention.key_length", 0);
  spec.experts = fields.integer("expert_count", 0);
  spec.experts_per_token = fields.integer("expert_used_count", 0);
  const std::string scaling = fields.text("rope.scaling.type", "none");
  const double factor = fields.real("rope.scaling.factor", 1);
  fields.require(scaling == "none" || factor == 1, "rope.scaling.type",
                 fmt::format("= {}: only the frequencies of llama3 are supported", scaling));
  return spec;
}

/// The parameters of llama3's stretching that give these factors.
model::RopeScaling scaling_of(const Header& header, ModelSpec spec, const Fields& fields,
                              const std::vector<float>& factors) {
  const float largest = *std::max_element(factors.begin(), factors.end());
  if (largest == 1 && *std::min_element(factors.begin(), factors.end()) == 1) return {};
  // The tensor tells the factor alone. Where our own keys say no more, all published models agree.
  const Metadata& metadata = header.metadata;
  const model::RopeScaling usual;
  spec.rope_scaling = {largest, metadata.real(kLowFrequency).value_or(usual.low_frequency),
                       metadata.real(kHighFrequency).value_or(usual.high_frequency),
                       metadata.integer(kOriginalSequence).value_or(usual.original_sequence)};
  const std::vector<float> expected = rope_factors(spec);
  bool same = expected.size() == factors.size();
  for (std::size_t i = 0; same && i < factors.size(); ++i)
    same = std::fabs(expected[i] - factors[i]) <= 1e-4f * expected[i];
  if (!same) fields.reject(fmt::format("{} does not have the factors of llama3", kRopeFactors));
  return spec.rope_scaling;
}

std::int64_t rows_of(const Header& header, const char* name) {
  const Tensor* tensor = header.find(name);
  if (!tensor || tensor->shape.size() != 2) {
    throw broken(fmt::format("'{}'", header.metadata.file()),
                 fmt::format("there is no matrix '{}'", name));
  }
  return tensor->shape[0];
}

/// Throws unless the matrices of the model could lie in the file: its sizes decide how much memory
/// the list of its tensors takes.
void check_sizes(const Header& header, const ModelSpec& spec, const Fields& fields) {
  std::int64_t largest = 0;
  for (const Tensor& tensor : header.tensors) largest = std::max(largest, count_of(tensor.shape));
  const auto fits = [&](std::int64_t first, std::int64_t second) {
    std::int64_t product;
    return !__builtin_mul_overflow(first, second, &product) && product <= largest;
  };
  if (spec.layers > static_cast<std::int64_t>(header.tensors.size()) ||
      !fits(spec.heads, spec.head_size) || !fits(spec.hidden, 1) ||
      (spec.positions == model::Positions::kLearned && !fits(spec.sequence, 1)) ||
      !fits(std::max<std::int64_t>(spec.experts, 1), spec.ffn)) {
    fields.reject("its tensors are too few or too small for the sizes in its metadata");
  }
}

}  // namespace

std::vector<SameTensor> tensors_of(const ModelSpec& spec) { return Names(spec).all(); }

Metadata metadata_of(const ModelSpec& spec) {
  const std::string architecture = architecture_of(spec);
  Metadata metadata;
  const auto add = [&](const std::string& key, Value value) {
    metadata.add(architecture + "." + key, std::move(value));
  };
  metadata.add("general.architecture", architecture);
  metadata.add("general.name", spec.name);
  add("block_count", spec.layers);
  add("context_length", spec.sequence);
  add("embedding_length", spec.hidden);
  add("feed_forward_length", spec.ffn);
  add("attention.head_count", spec.heads);
  if (architecture == "gpt2") {
    add("attention.layer_norm_epsilon", spec.norm_epsilon);
    return metadata;
  }
  add("vocab_size", spec.vocab);
  add("attention.head_count_kv", spec.kv_heads);
  add("attention.key_length", spec.head_size);
  add("attention.value_length", spec.head_size);
  add("attention.layer_norm_rms_epsilon", spec.norm_epsilon);
  add("rope.dimension_count", spec.head_size);
  add("rope.freq_base", spec.rope_theta);
  if (spec.experts > 0) {
    add("expert_count", spec.experts);
    add("expert_used_count", spec.experts_per_token);
  }
  if (spec.rope_scaling.factor != 1) {
    metadata.add(kLowFrequency, spec.rope_scaling.low_frequency);
    metadata.add(kHighFrequency, spec.rope_scaling.high_frequency);
    metadata.add(kOriginalSequence, spec.rope_scaling.original_sequence);
  }
  return metadata;
}

ModelSpec spec_of(const Header& header, const std::vector<float>& rope_factors) {
  Fields fields(header);
  const std::string& architecture = fields.architecture();
  const bool gpt2 = architecture == "gpt2";
  if (!gpt2 && architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    fields.reject(fmt::format(
        "general.architecture is '{}': gpt2, llama, qwen2 and qwen3 are supported", architecture));
  }
  ModelSpec spec = gpt2 ? read_gpt2(fields) : read_rotary(fields);
  spec.name = header.metadata.text("general.name").value_or(architecture);
  if (!is_utf8(spec.name)) spec.name = architecture;
  spec.layers = fields.integer("block_count");
  spec.hidden = fields.integer("embedding_length");
  spec.heads = fields.integer("attention.head_count");
  spec.kv_heads = fields.integer("attention.head_count_kv", spec.heads);
  spec.ffn = fields.integer("feed_forward_length");
  spec.sequence = fields.integer("context_length");
  spec.vocab = rows_of(header, "token_embd.weight");
  spec.tied_embeddings = !header.find("output.weight");
  fields.require(fields.integer("vocab_size", spec.vocab) == spec.vocab, "vocab_size",
                 fmt::format("is not the {} rows of token_embd.weight", spec.vocab));
  try {
    spec = model::complete(spec);
    model::validate(spec);
  } catch (const Error& error) {
    fields.reject(error.message());
  }
  fields.require(fields.integer("attention.value_length", spec.head_size) == spec.head_size,
                 "attention.value_length", "differs from the length of a key");
  fields.require(fields.integer("rope.dimension_count", spec.head_size) == spec.head_size,
                 "rope.dimension_count", "is a part of a head; all of it is turned here");
  const std::int64_t window = fields.integer("attention.sliding_window", spec.sequence);
  fields.require(window == 0 || window >= spec.sequence, "attention.sliding_window",
                 "is shorter than the context: windowed attention is not supported");
  fields.text("tensor_data_layout", "");  // where the file came from
  fields.no_others();
  check_sizes(header, spec, fields);
  if (!rope_factors.empty()) spec.rope_scaling = scaling_of(header, spec, fields, rope_factors);
  return spec;
}

std::vector<float> rope_factors(const ModelSpec& spec) {
  const model::RopeScaling& scaling = spec.rope_scaling;
  if (scaling.factor == 1) return {};
  std::vector<float> factors;
  const auto original = static_cast<double>(scaling.original_sequence);
  for (std::int64_t i = 0; i < spec.head_size / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(spec.head_size);
    const double wave_length = 2 * std::numbers::pi * std::pow(spec.rope_theta, exponent);
    // How many waves the original sequence has decides: few are stretched, many are not.
    const double share = std::clamp((original / wave_length - scaling.low_frequency) /
                                        (scaling.high_frequency - scaling.low_frequency),
                                    0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - share) / scaling.factor + share)));
  }
  return factors;
}

}  // namespace shoal::checkpoint::format::gguf
