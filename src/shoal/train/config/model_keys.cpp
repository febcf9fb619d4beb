#include "shoal/train/config/key_lister.h"

namespace shoal::train {

void list_model_keys(std::vector<ConfigKey>& keys) {
  using J = JobSection;
  Lister<J>(keys, "job", &JobConfig::job)
      .key("name", &J::name, any(),
           "names the run directory, runs/NAME; letters, digits, '.', '_' and '-'")
      .key("description", &J::description, any(), "a line for people, shown when the job starts");
  using M = ModelSection;
  Lister<M>(keys, "model", &JobConfig::model)
      .key("name", &M::name, any(),
           "a named size; the other keys change it. Without a name they give the whole shape")
      .key("from", &M::from, any(),
           "weights to start from, in place of a name and a shape: a Hugging Face folder "
           "(config.json, safetensors), a GGUF file, a checkpoint or a run directory of Shoal")
      .key("family", &M::family, "kind of model; only where `name` is not set")
      .key("layers", &M::layers, at_least(1), "transformer blocks")
      .key("hidden", &M::hidden, at_least(1), "width of the residual stream")
      .key("heads", &M::heads, at_least(1),
           "attention heads; hidden is a multiple of them unless `head_size` is given")
      .key("kv_heads", &M::kv_heads, at_least(1),
           "key-value heads (grouped-query attention); divides `heads`")
      .key("head_size", &M::head_size, at_least(1), "width of one head")
      .key("ffn", &M::ffn, at_least(1), "width of the feed-forward layers")
      .key("vocab", &M::vocab, at_least(0),
           "rows of the embedding; 0: what the tokenizer needs, rounded up to a multiple of 64")
      .key("sequence", &M::sequence, at_least(0),
           "longest sequence in tokens; 0: training.sequence_length")
      .key("tied_embeddings", &M::tied_embeddings, any(), "the head uses the embedding's weight")
      .key("bias", &M::bias, any(), "biases in linear layers and LayerNorm")
      .key("qkv_bias", &M::qkv_bias, any(),
           "biases of queries, keys and values alone, as in Qwen2; only where `bias` is false")
      .key("qk_norm", &M::qk_norm, any(),
           "RMSNorm of each head's query and key before their positions, as in Qwen3; only where "
           "`norm` is rms")
      .key("gated", &M::gated, any(), "gated feed-forward layers (SwiGLU)")
      .key("positions", &M::positions, "how positions enter")
      .key("rope_theta", &M::rope_theta, above(0), "base of the rotary frequencies")
      .key("norm", &M::norm, "LayerNorm or RMSNorm")
      .key("norm_epsilon", &M::norm_epsilon, above(0), "added to the variance in norms")
      .key("dropout", &M::dropout, from_to_below(0, 1),
           "probability with which activations are dropped in training")
      .key("init_std", &M::init_std, at_least(0), "standard deviation of initial weights")
      .key("activation", &M::activation, "non-linearity of the feed-forward layers")
      .key("experts", &M::experts, at_least(0),
           "routed experts of a block, `ffn` wide each; 0: none")
      .key("experts_per_token", &M::experts_per_token, at_least(0), "experts that a token visits")
      .key("shared_ffn", &M::shared_ffn, at_least(0),
           "width of the experts together that every token visits, beside the routed ones")
      .key("dense_layers", &M::dense_layers, at_least(0),
           "first blocks of a mixture that have a dense feed-forward layer instead")
      .key("dense_ffn", &M::dense_ffn, at_least(0), "its width")
      .key("router_score", &M::router_score, "scores of experts: of all together, or of each")
      .key("normalize_gates", &M::normalize_gates, any(),
           "the gates of a token's experts are divided by their sum")
      .key("gate_scale", &M::gate_scale, above(0), "factor of the gates")
      .key("router_bias", &M::router_bias, any(),
           "a bias of each expert in the choice, which no gradient trains")
      .key("router_bias_rate", &M::router_bias_rate, at_least(0),
           "how far these biases move after each step, towards experts with fewer tokens than the "
           "mean")
      .key("balance_loss", &M::balance_loss, at_least(0),
           "coefficient of the loss of each sequence that balances its experts; 0: none")
      .key(
          "capacity_factor", &M::capacity_factor, at_least(0),
          "in training an expert takes at most ceil(capacity_factor * experts_per_token * tokens / "
          "experts) tokens of a sequence, the first ones; 0: all")
      .key("inputs", &M::inputs, at_least(0), "mlp: inputs; 0: features of the data")
      .key("outputs", &M::outputs, at_least(0), "mlp: outputs; 0: classes or targets of the data")
      .key("widths", &M::widths, at_least(1), "mlp: widths of the hidden layers");
}

}  // namespace shoal::train
