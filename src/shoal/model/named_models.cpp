#include <utility>

#include "shoal/model/model_spec.h"

namespace shoal::model {
namespace {

ModelSpec gpt2(std::int64_t layers, std::int64_t heads, std::int64_t hidden,
               std::int64_t vocab = 50304, std::int64_t sequence = 1024) {
  ModelSpec spec;
  spec.layers = layers;
  spec.heads = heads;
  spec.hidden = hidden;
  spec.vocab = vocab;
  spec.sequence = sequence;
  return complete(spec);
}

ModelSpec llama(std::int64_t layers, std::int64_t heads, std::int64_t kv_heads, std::int64_t hidden,
                std::int64_t ffn, std::int64_t vocab, std::int64_t sequence) {
  ModelSpec spec;
  spec.layers = layers;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.hidden = hidden;
  spec.ffn = ffn;
  spec.vocab = vocab;
  spec.sequence = sequence;
  spec.tied_embeddings = false;
  spec.bias = false;
  spec.gated = true;
  spec.positions = Positions::kRotary;
  spec.norm = Norm::kRms;
  spec.activation = Activation::kSilu;
  return complete(spec);
}

/// Llama 3.1 and 3.2 have the base 500,000 and stretch frequencies by `factor` from a context of
/// 8192.
ModelSpec llama3(ModelSpec spec, double factor) {
  spec.rope_theta = 500000;
  spec.rope_scaling.factor = factor;
  return spec;
}

ModelSpec tied(ModelSpec spec) {
  spec.tied_embeddings = true;
  return spec;
}

ModelSpec qwen2(ModelSpec spec) {
  spec.qkv_bias = true;
  spec.rope_theta = 1e6;
  spec.norm_epsilon = 1e-6;
  return spec;
}

/// The heads of Qwen3 are `head_size` wide, whatever the width of the model.
ModelSpec qwen3(ModelSpec spec, std::int64_t head_size = 128) {
  spec.qk_norm = true;
  spec.head_size = head_size;
  spec.rope_theta = 1e6;
  spec.norm_epsilon = 1e-6;
  return spec;
}

ModelSpec mixture(ModelSpec spec, std::int64_t experts, std::int64_t experts_per_token,
                  double rope_theta) {
  spec.experts = experts;
  spec.experts_per_token = experts_per_token;
  spec.rope_theta = rope_theta;
  return spec;
}

/// The feed-forward layers of DeepSeek-V3: sigmoid scores, a bias in the choice, experts that every
/// token visits, and dense first blocks.
ModelSpec deepseek_experts(ModelSpec spec, std::int64_t shared_ffn, std::int64_t dense_layers,
                           std::int64_t dense_ffn) {
  spec.router_score = RouterScore::kSigmoid;
  spec.gate_scale = 2.5;
  spec.router_bias = true;
  spec.router_bias_rate = 0.001;
  spec.balance_loss = 0.0001;
  spec.shared_ffn = shared_ffn;
  spec.dense_layers = dense_layers;
  spec.dense_ffn = dense_ffn;
  return spec;
}

ModelSpec mlp(std::int64_t inputs, std::vector<std::int64_t> widths, std::int64_t outputs) {
  ModelSpec spec;
  spec.family = Family::kMlp;
  spec.activation = Activation::kRelu;
  spec.inputs = inputs;
  spec.widths = std::move(widths);
  spec.outputs = outputs;
  return spec;
}

struct Entry {
  const char* name;
  ModelSpec (*make)();
};

// Sources. GPT-2: Radford et al., 2019, with the vocabulary padded from 50257 to a multiple of 128.
// GPT-3: Brown et al., 2020, table 2.1, GPT-2's vocabulary. Llama 2 and 3: the config.json files
// that Meta published. Mixtral: Jiang et al., 2024. deepseek-moe-tiny has the experts of
// DeepSeek-V3 (DeepSeek-AI, 2024) and Llama's attention, not its latent one. The 160M one is
// JackFram/llama-160m. Qwen2.5: Qwen Team, 2024, and the config.json files of its base models.
// Qwen3: Qwen Team, 2025, and the config.json files of its post-trained models; base models differ
// in the longest sequence, 32768.
constexpr Entry kModels[] = {
    {"gpt2-tiny", [] { return gpt2(4, 4, 128, 256, 256); }},
    {"gpt2-30m", [] { return gpt2(6, 6, 384); }},
    {"gpt2-124m", [] { return gpt2(12, 12, 768); }},
    {"gpt2-350m", [] { return gpt2(24, 16, 1024); }},
    {"gpt2-774m", [] { return gpt2(36, 20, 1280); }},
    {"gpt2-1.5b", [] { return gpt2(48, 25, 1600); }},
    {"gpt3-6.7b", [] { return gpt2(32, 32, 4096, 50304, 2048); }},
    {"gpt3-13b", [] { return gpt2(40, 40, 5120, 50304, 2048); }},
    {"gpt3-175b", [] { return gpt2(96, 96, 12288, 50304, 2048); }},
    {"llama-tiny", [] { return llama(4, 4, 2, 128, 352, 256, 256); }},
    {"llama-160m", [] { return llama(12, 12, 12, 768, 3072, 32000, 2048); }},
    {"llama-1b", [] { return llama3(tied(llama(16, 32, 8, 2048, 8192, 128256, 131072)), 32); }},
    {"llama-3b", [] { return llama3(tied(llama(28, 24, 8, 3072, 8192, 128256, 131072)), 32); }},
    {"llama-7b", [] { return llama(32, 32, 32, 4096, 11008, 32000, 4096); }},
    {"llama-8b", [] { return llama3(llama(32, 32, 8, 4096, 14336, 128256, 131072), 8); }},
    {"llama-13b", [] { return llama(40, 40, 40, 5120, 13824, 32000, 4096); }},
    {"llama-2-70b", [] { return llama(80, 64, 8, 8192, 28672, 32000, 4096); }},
    {"llama-70b", [] { return llama3(llama(80, 64, 8, 8192, 28672, 128256, 131072), 8); }},
    {"llama-405b", [] { return llama3(llama(126, 128, 8, 16384, 53248, 128256, 131072), 8); }},
    {"qwen2-tiny", [] { return qwen2(tied(llama(4, 4, 2, 128, 352, 256, 256))); }},
    {"qwen2.5-0.5b", [] { return qwen2(tied(llama(24, 14, 2, 896, 4864, 151936, 32768))); }},
    {"qwen2.5-1.5b", [] { return qwen2(tied(llama(28, 12, 2, 1536, 8960, 151936, 131072))); }},
    {"qwen2.5-7b", [] { return qwen2(llama(28, 28, 4, 3584, 18944, 152064, 131072)); }},
    {"qwen2.5-72b", [] { return qwen2(llama(80, 64, 8, 8192, 29568, 152064, 131072)); }},
    {"qwen3-tiny", [] { return qwen3(tied(llama(4, 4, 2, 128, 352, 256, 256)), 48); }},
    {"qwen3-0.6b", [] { return qwen3(tied(llama(28, 16, 8, 1024, 3072, 151936, 40960))); }},
    {"qwen3-1.7b", [] { return qwen3(tied(llama(28, 16, 8, 2048, 6144, 151936, 40960))); }},
    {"qwen3-4b", [] { return qwen3(tied(llama(36, 32, 8, 2560, 9728, 151936, 40960))); }},
    {"qwen3-8b", [] { return qwen3(llama(36, 32, 8, 4096, 12288, 151936, 40960)); }},
    {"qwen3-14b", [] { return qwen3(llama(40, 40, 8, 5120, 17408, 151936, 40960)); }},
    {"qwen3-32b", [] { return qwen3(llama(64, 64, 8, 5120, 25600, 151936, 40960)); }},
    {"moe-tiny", [] { return mixture(llama(4, 4, 2, 128, 176, 256, 256), 4, 2, 10000); }},
    {"deepseek-moe-tiny",
     [] {
       return deepseek_experts(mixture(llama(4, 4, 2, 128, 64, 256, 256), 8, 2, 10000), 64, 1, 352);
     }},
    {"mixtral-8x7b",
     [] { return mixture(llama(32, 32, 8, 4096, 14336, 32000, 32768), 8, 2, 1e6); }},
    {"mlp-digits", [] { return mlp(64, {64}, 10); }},
};

}  // namespace

std::optional<ModelSpec> named_model(std::string_view name) {
  const std::string_view wanted = name == "gpt2" ? "gpt2-124m" : name;
  for (const Entry& entry : kModels) {
    if (wanted != entry.name) continue;
    ModelSpec spec = entry.make();
    spec.name = entry.name;
    return spec;
  }
  return std::nullopt;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

}  // namespace shoal::model
