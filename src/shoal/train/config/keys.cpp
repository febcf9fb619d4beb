#include "shoal/train/config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "shoal/model/model_spec.h"
#include "shoal/train/config/toml_text.h"

namespace shoal::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// {least, most, least itself excluded, words, most itself excluded}
Allowed any() { return {}; }
Allowed at_least(double least) { return {least, kInfinity, false, {}}; }
Allowed above(double least) { return {least, kInfinity, true, {}}; }
Allowed between(double least, double most) { return {least, most, false, {}}; }
Allowed from_to_below(double least, double most) { return {least, most, false, {}, true}; }
Allowed one_of(std::vector<std::string> words) {
  return {-kInfinity, kInfinity, false, std::move(words)};
}

// Conditions of keys. Each returns the reason why a key has no effect in this job, else nothing.

std::string of_tokens(const JobConfig& job) {
  if (job.data.source == DataKind::kTokens) return {};
  return fmt::format("belongs to token data, and data.source is \"{}\"", name_of(job.data.source));
}

std::string of_tables(const JobConfig& job) {
  if (job.data.source != DataKind::kTokens) return {};
  return "belongs to tables, and data.source is \"tokens\"";
}

std::string of_regression(const JobConfig& job) {
  if (job.data.source == DataKind::kRegression) return {};
  return "belongs to the synthetic regression (data.source = \"regression\")";
}

std::string of_csv(const JobConfig& job) {
  if (job.data.source == DataKind::kCsv) return {};
  return "belongs to a CSV table (data.source = \"csv\")";
}

std::string of_table_files(const JobConfig& job) {
  if (job.data.source != DataKind::kRegression) return {};
  return "a synthetic regression reads no file";
}

std::string of_preparation(const JobConfig& job) {
  if (job.data.prepare != DataPreparation::kNothing) return {};
  return "says how to prepare, and data.prepare is \"nothing\"";
}

std::string of_bpe(const JobConfig& job) {
  if (job.data.tokenizer == TokenizerChoice::kBpe) return {};
  return fmt::format("belongs to the BPE tokenizer, and data.tokenizer is \"{}\"",
                     name_of(job.data.tokenizer));
}

std::string of_samples(const JobConfig& job) {
  if (job.validation.sample_tokens > 0) return {};
  return "begins a sample, and validation.sample_tokens is 0";
}

std::string of_adamw(const JobConfig& job) {
  if (job.optimizer.name == OptimizerKind::kAdamW) return {};
  return "belongs to adamw, and optimizer.name is \"sgd\"";
}

std::string of_sgd(const JobConfig& job) {
  if (job.optimizer.name == OptimizerKind::kSgd) return {};
  return "belongs to sgd, and optimizer.name is \"adamw\"";
}

std::string of_wsd(const JobConfig& job) {
  if (job.lr_scheduler.name == SchedulerKind::kWarmupStableDecay) return {};
  return "belongs to wsd";
}

std::string of_falling_rates(const JobConfig& job) {
  if (job.lr_scheduler.name != SchedulerKind::kConstant) return {};
  return "a constant learning rate does not end elsewhere";
}

std::string of_mode(const JobConfig& job, RecomputeMode mode) {
  const RecomputeMode set = job.activation_checkpoint.mode;
  if (set == mode) return {};
  return fmt::format("has no meaning with activation_checkpoint.mode = \"{}\"", name_of(set));
}

std::string of_every_k(const JobConfig& job) { return of_mode(job, RecomputeMode::kEveryK); }

std::string of_budget(const JobConfig& job) { return of_mode(job, RecomputeMode::kBudget); }

std::string of_asynchronous(const JobConfig& job) {
  if (job.checkpoint.asynchronous) return {};
  return "belongs to checkpoint.asynchronous = true";
}

std::string of_faults(const JobConfig& job) {
  if (job.debug.fault != Fault::kNone) return {};
  return "says where the fault happens, and debug.fault is \"none\"";
}

std::string of_shards(const JobConfig& job) {
  if (job.parallelism.zero_stage > 0) return {};
  return "says how to shard, and parallelism.zero_stage is 0";
}

std::string of_stage_3(const JobConfig& job) {
  if (job.parallelism.zero_stage == 3) return {};
  return "belongs to parallelism.zero_stage = 3";
}
/// A file that a run wrote names every key, so the default is accepted where it has no effect.
std::string of_stage_3_or_default(const JobConfig& config) {
  const bool unchanged = config.parallelism.gather_ahead == ParallelismSection().gather_ahead;
  return unchanged ? "" : of_stage_3(config);
}

/// A file that a run wrote names every key, so the default is accepted.
std::string of_context_ranks(const JobConfig& job) {
  const ParallelismSection& p = job.parallelism;
  if (p.context_parallel_degree > 1 || p.context_parallel_way == ContextParallelWay::kRing)
    return {};
  return "says how ranks divide a sequence, and parallelism.context_parallel_degree is 1";
}

std::string of_a_pipeline(const JobConfig& job) {
  const ParallelismSection unchanged;
  const ParallelismSection& p = job.parallelism;
  // A file that a run wrote names every key, so defaults are accepted.
  const bool defaults =
      p.pipeline_parallel_schedule == unchanged.pipeline_parallel_schedule &&
      p.pipeline_parallel_schedule_csv.empty() && p.pipeline_parallel_virtual_stages == 1 &&
      p.pipeline_parallel_stage_units.empty() && p.pipeline_parallel_gathered_stages == 0;
  if (p.pipeline_parallel_degree > 1 || defaults) return {};
  return "says how to run a pipeline, and parallelism.pipeline_parallel_degree is 1";
}

std::string of_tensor_parallel(const JobConfig& job) {
  const ParallelismSection& p = job.parallelism;
  if (p.tensor_parallel_degree > 1 || p.layouts.empty()) return {};
  return "says how to divide modules, and parallelism.tensor_parallel_degree is 1";
}

std::string of_buckets(const JobConfig& job) {
  if (job.parallelism.zero_stage == 0) return {};
  return "with parallelism.zero_stage above 0 units are sent, and no buckets";
}

std::string of_units_by_size(const JobConfig& job) {
  if (job.parallelism.shard_units == ShardUnits::kSize) return {};
  return "belongs to parallelism.shard_units = \"size\"";
}

/// Adds the keys of one section, each with the member that holds it.
template <class Section>
class Lister {
 public:
  Lister(std::vector<ConfigKey>& keys, std::string section, Section JobConfig::*place)
      : keys_(keys), section_(std::move(section)), place_(place) {}

  template <class T>
  Lister& key(const char* name, T Section::*member, Allowed allowed, const char* doc) {
    const auto section = place_;
    keys_.push_back(
        {section_, name, doc, std::move(allowed),
         [section, member](JobConfig& config) -> Place { return &(config.*section.*member); }});
    return *this;
  }

  /// A key that takes the names of E, or those that `allowed` lists.
  template <JobChoice E>
  Lister& key(const char* name, E Section::*member, Allowed allowed, const char* doc) {
    const auto section = place_;
    keys_.push_back(
        {section_, name, doc, std::move(allowed), [section, member](JobConfig& config) -> Place {
           return choice_place(config.*section.*member);
         }});
    return *this;
  }
  template <JobChoice E>
  Lister& key(const char* name, E Section::*member, const char* doc) {
    const auto& names = ChoiceNames<E>::names;
    return key(name, member, one_of({names.begin(), names.end()}), doc);
  }

  /// As above, for a key that need not be set.
  template <JobChoice E>
  Lister& key(const char* name, std::optional<E> Section::*member, const char* doc) {
    const auto& names = ChoiceNames<E>::names;
    const auto section = place_;
    const auto place = [section, member](JobConfig& config) -> Place {
      std::optional<E>& value = config.*section.*member;
      return ChoicePlace{
          .get = [&value] { return value ? std::string(name_of(*value)) : std::string(); },
          .set = [&value](const std::string& name) { value = find_choice<E>(name).value(); }};
    };
    keys_.push_back({section_, name, doc, one_of({names.begin(), names.end()}), place});
    return *this;
  }

  /// Conditions of the key that was added last, the most general first.
  Lister& only_with(std::vector<Requirement> requirements) {
    keys_.back().only_with = std::move(requirements);
    return *this;
  }

 private:
  template <JobChoice E>
  static Place choice_place(E& value) {
    return ChoicePlace{
        .get = [&value] { return std::string(name_of(value)); },
        .set = [&value](const std::string& name) { value = find_choice<E>(name).value(); }};
  }

  std::vector<ConfigKey>& keys_;
  std::string section_;
  Section JobConfig::*place_;
};

void list_model(std::vector<ConfigKey>& keys) {
  using M = ModelSection;
  Lister<M>(keys, "model", &JobConfig::model)
      .key("name", &M::name, any(),
           "a named size; the other keys change it. Without a name they give the whole shape")
      .key("from", &M::from, any(),
           "weights to start from, in place of a name and a shape: a Hugging Face folder "
           "(config.json, safetensors), a checkpoint or a run directory of Shoal")
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

void list_data(std::vector<ConfigKey>& keys) {
  using D = DataSection;
  Lister<D>(keys, "data", &JobConfig::data)
      .key("source", &D::source,
           "token data sets, handwritten digits, a CSV table, or a synthetic regression")
      .key("folders", &D::folders, any(), "tokens: folders that `shoal data prepare` wrote")
      .only_with({of_tokens})
      .key("weights", &D::weights, above(0),
           "tokens: how often each folder is drawn from, one a folder; empty: by their number of "
           "tokens")
      .only_with({of_tokens})
      .key("prepare", &D::prepare,
           "tokens: what to prepare into the one folder when it holds no data set yet; headers: "
           "the C++ headers of the Torch that this program was "
           "built against")
      .only_with({of_tokens})
      .key("prepare_from", &D::prepare_from, any(),
           "tokens: files and folders to prepare from, with prepare = \"files\"")
      .only_with({of_tokens})
      .key("tokenizer", &D::tokenizer,
           "tokens: tokenizer of a data set that is prepared; model: that of model.from")
      .only_with({of_tokens, of_preparation})
      .key("vocab_size", &D::vocab_size, between(258, 1000000),
           "tokens: entries of the BPE tokenizer of a data set that is prepared, at most")
      .only_with({of_tokens, of_preparation, of_bpe})
      .key(
          "document_mask", &D::document_mask, any(),
          "tokens: attention stays within a document where a sample holds several. Positions go on "
          "through the sample")
      .only_with({of_tokens})
      .key("file", &D::file, any(),
           "csv: the table. digits: a copy of the table; empty: the one that ships with Shoal")
      .only_with({of_tables, of_table_files})
      .key("target", &D::target, any(),
           "csv: name or index (from 0) of the column to be learnt; empty: the last")
      .only_with({of_tables, of_csv})
      .key("task", &D::task, "csv: what the target is")
      .only_with({of_tables, of_csv})
      .key("samples", &D::samples, between(2, 1e9), "regression: samples to make")
      .only_with({of_tables, of_regression})
      .key("features", &D::features, between(1, 1e6), "regression: inputs of a sample")
      .only_with({of_tables, of_regression})
      .key("noise", &D::noise, at_least(0),
           "regression: standard deviation of the noise in the target")
      .only_with({of_tables, of_regression})
      .key("validation_fraction", &D::validation_fraction, {0, 0.9, true, {}},
           "tables: part of the rows kept for validation")
      .only_with({of_tables});
}

void list_training(std::vector<ConfigKey>& keys) {
  using T = TrainingSection;
  Lister<T>(keys, "training", &JobConfig::training)
      .key("global_batch_sequences", &T::global_batch_sequences, between(1, 1e9),
           "sequences (rows of a table) in one step over all ranks; this or global_batch_tokens")
      .key("global_batch_tokens", &T::global_batch_tokens, between(1, 1e12),
           "tokens in one step over all ranks; a multiple of sequence_length")
      .only_with({of_tokens})
      .key("micro_batch", &T::micro_batch, between(0, 1e9),
           "sequences that a rank runs at once; 0: its whole share of the global batch. Never "
           "changes what is learnt")
      .key("sequence_length", &T::sequence_length, between(1, 1 << 24),
           "tokens in a sequence; of token data")
      .only_with({of_tokens})
      .key("steps", &T::steps, between(1, 1e12),
           "length of the run in optimizer steps; exactly one of steps, tokens, epochs")
      .key("tokens", &T::tokens, between(1, 1e16),
           "length of the run in tokens, rounded up to whole steps")
      .only_with({of_tokens})
      .key("epochs", &T::epochs, {0, 1e9, true, {}},
           "length of the run in passes over the training split, rounded down to whole steps")
      .key("loss", &T::loss,
           "what is minimised; auto: cross_entropy for tokens and classes, mean_squared_error for "
           "a regression");
}

void list_optimization(std::vector<ConfigKey>& keys) {
  using O = OptimizerSection;
  Lister<O>(keys, "optimizer", &JobConfig::optimizer)
      .key("name", &O::name, "AdamW or stochastic gradient descent with momentum")
      .key("learning_rate", &O::learning_rate, at_least(0), "highest learning rate")
      .key("beta1", &O::beta1, from_to_below(0, 1), "adamw: decay of the mean of gradients")
      .only_with({of_adamw})
      .key("beta2", &O::beta2, from_to_below(0, 1), "adamw: decay of the mean of squared gradients")
      .only_with({of_adamw})
      .key("epsilon", &O::epsilon, above(0), "adamw: added to the root of the mean square")
      .only_with({of_adamw})
      .key("momentum", &O::momentum, from_to_below(0, 1), "sgd: decay of the momentum; 0: none")
      .only_with({of_sgd})
      .key("nesterov", &O::nesterov, any(), "sgd: Nesterov's momentum")
      .only_with({of_sgd})
      .key("weight_decay", &O::weight_decay, at_least(0),
           "decay of matrices (biases and norms do not decay); adamw: decoupled, times the "
           "learning rate")
      .key("clip_norm", &O::clip_norm, at_least(0),
           "norm of the whole gradient above which it is scaled down; 0: never")
      .key("state_folder", &O::state_folder, any(),
           "a folder on a disk: the optimizer's state (moments, master weights) lies in files "
           "there that are mapped into memory, so that a state "
           "larger "
           "than memory still trains, slowly, with the same bits; empty: in memory");
  using S = SchedulerSection;
  Lister<S>(keys, "lr_scheduler", &JobConfig::lr_scheduler)
      .key("name", &S::name,
           "course of the learning rate after the warm-up; wsd: constant, then linear at the end")
      .key("warmup_steps", &S::warmup_steps, between(0, 1e12),
           "steps over which the learning rate rises from 0")
      .key("decay_fraction", &S::decay_fraction, between(0, 1),
           "wsd: part of all steps, at the end, over which the learning rate falls")
      .only_with({of_wsd})
      .key("final_ratio", &S::final_ratio, between(0, 1),
           "linear, cosine, wsd: where the learning rate falls to, as part of the highest: a step "
           "after the last would have it")
      .only_with({of_falling_rates});
}

void list_precision(std::vector<ConfigKey>& keys) {
  using P = PrecisionSection;
  Lister<P>(keys, "precision", &JobConfig::precision)
      .key("type", &P::type,
           "type of the weight matrices; activations and gradients are rounded to it before each "
           "product. Sums, norms, softmax and loss stay fp32. auto: the faster of fp32 and bf16, "
           "measured when the run begins")
      .key("parameters", &P::parameters, any(),
           "exceptions by name, \"pattern=type\" with * for any text, the first that fits counts; "
           "vectors (norms, biases) are fp32 unless one names "
           "them")
      .key("master_weights", &P::master_weights, any(),
           "16-bit weights are copies of fp32 ones that the optimizer updates; false (bf16): "
           "updated in place, rounded stochastically")
      .key("gradients", &P::gradients, one_of({"fp32", "bf16"}),
           "type in which gradients add up over micro-batches and ranks")
      .key("moments", &P::moments, one_of({"fp32", "bf16"}),
           "adamw: type of its two moments; bf16 is rounded stochastically")
      .only_with({of_adamw})
      .key("gathers", &P::gathers, one_of({"fp32", "bf16"}),
           "zero_stage 1 to 3 where parameters are gathered (between hosts, TCP, MPI, arena = "
           "false): type in which fp32 ones are sent. bf16: half the bytes; ranks compute with the "
           "rounded values and update those that they own unrounded")
      .only_with({of_shards})
      .key("loss_scale", &P::loss_scale, between(1, 1e12),
           "fp16: factor of the loss at the beginning; an overflow skips the step and halves it, "
           "down to 1")
      .key("loss_scale_growth_interval", &P::loss_scale_growth_interval, between(1, 1e9),
           "fp16: steps without overflow after which the factor doubles");
}

void list_running(std::vector<ConfigKey>& keys) {
  using P = ParallelismSection;
  Lister<P>(keys, "parallelism", &JobConfig::parallelism)
      .key("ranks", &P::ranks, between(1, 4096),
           "how many ranks Shoal's own launcher starts on this host (--nproc); under another "
           "launcher its number counts")
      .key("in_process", &P::in_process, any(),
           "ranks are threads of one process instead of processes (--in-process)")
      .key("threads_per_rank", &P::threads_per_rank, between(0, 4096),
           "threads that compute in one rank; 0: cores of the host / its ranks")
      .key("pin_cores", &P::pin_cores, any(), "each rank keeps to its own cores")
      .key("arena", &P::arena, any(),
           "tensors live in memory that all ranks of the host read in place; off gives the same "
           "bits, slower")
      .key("memory_limit_mb", &P::memory_limit_mb, at_least(0),
           "what the tensors of one rank may take in MB: a job that needs more is refused before "
           "it starts; 0: its share of what the host has free")
      .key("transport", &P::transport,
           "what carries the bytes between ranks; auto: shared memory inside a host, TCP between "
           "hosts; tcp: TCP alone; mpi: MPI, under mpirun")
      .key("interface", &P::interface, any(),
           "TCP: name or address prefix of the network interface; empty: the one that leads to "
           "rank 0")
      .key("ports", &P::ports, any(),
           "TCP: on which ports a rank listens, \"7000-7100\": the first that is free; 0: "
           "whichever the system gives")
      .key("algorithms", &P::algorithms, any(),
           "TCP: algorithms in place of those that are predicted to be fastest: "
           "\"all_reduce=ring,broadcast=direct\"; `shoal bench collectives "
           "--print-choice` lists them")
      .key("link_costs", &P::link_costs, any(),
           "TCP: a cluster file that `shoal plan calibrate` wrote: algorithms are chosen by what "
           "messages cost according to its [tcp], as rank 0 "
           "reads it; empty: by defaults")
      .key("in_rank_order", &P::in_rank_order, any(),
           "sums are taken in the order of ranks, so that they have the same bits on one host, on "
           "several and over TCP, by every algorithm; shared memory always does, between hosts it "
           "costs time; not with transport = \"mpi\", where MPI chooses the order")
      .key("bucket_mb", &P::bucket_mb, {0, 65536, true, {}},
           "size of a gradient bucket in MB where gradients are copied to be sent: processes with "
           "arena = false, TCP or MPI")
      .only_with({of_buckets})
      .key("zero_stage", &P::zero_stage, between(0, 3),
           "what data-parallel ranks hold shards of: 0 nothing, 1 the optimizer's state, 2 "
           "gradients too, 3 parameters too (FSDP)")
      .key("data_parallel_shard_degree", &P::data_parallel_shard_degree, between(-1, 4096),
           "zero_stage 1 to 3: data-parallel ranks among which state is cut; -1: ranks / "
           "(the other degrees)")
      .only_with({of_shards})
      .key("data_parallel_replicate_degree", &P::data_parallel_replicate_degree, between(1, 4096),
           "zero_stage 1 to 3: copies of the whole state, each cut among its own ranks (hybrid "
           "sharding)")
      .only_with({of_shards})
      .key("tensor_parallel_degree", &P::tensor_parallel_degree, between(1, 4096),
           "ranks that divide the matrices of a transformer and the residual stream between its "
           "blocks among them, and train on the same samples; neighbours in the numbering of "
           "ranks")
      .key("layouts", &P::layouts, any(),
           "how the ranks of tensor_parallel_degree divide modules, in front of what they do by "
           "default: [\"blocks.0.mlp.*: weight replicate\"]; the first rule that fits a module "
           "counts, and `shoal plan --recipe JOB` prints all of them")
      .only_with({of_tensor_parallel})
      .key("expert_parallel_degree", &P::expert_parallel_degree, between(1, 4096),
           "ranks that divide the experts of a mixture among them: consecutive ranks of a pipeline "
           "stage, whichever other axes they lie on; tokens travel to their experts")
      .key("context_parallel_degree", &P::context_parallel_degree, between(1, 4096),
           "ranks that divide the columns of every sequence of a transformer among them, and hold "
           "the same parameters: for sequences whose activations one rank cannot hold")
      .key("context_parallel_way", &P::context_parallel_way,
           "how they compute attention: keys and values travel from rank to rank, or each rank "
           "gets whole sequences of its part of the key-value heads")
      .only_with({of_context_ranks})
      .key("pipeline_parallel_degree", &P::pipeline_parallel_degree, between(1, 4096),
           "ranks that divide the units of a transformer (embedding, blocks, head) in stages; "
           "micro-batches go through them one behind the other")
      .key("pipeline_parallel_schedule", &P::pipeline_parallel_schedule, any(),
           "the order of passes: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v or dualpipe-v")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_schedule_csv", &P::pipeline_parallel_schedule_csv, any(),
           "a file with the order of passes, instead of pipeline_parallel_schedule: one line a "
           "rank, as PyTorch writes them (0F0,0F1,0B0 ...)")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_virtual_stages", &P::pipeline_parallel_virtual_stages, between(1, 64),
           "pipeline_parallel_schedule = \"interleaved\": stages of each rank")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_stage_units", &P::pipeline_parallel_stage_units, at_least(1),
           "units of each stage, the embedding and the head among them: [9, 5]; empty: divided so "
           "that the most expensive stage costs least")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_gathered_stages", &P::pipeline_parallel_gathered_stages,
           between(0, 64),
           "zero_stage 3 where parameters are gathered: so many stages of a rank are whole at a "
           "time; 0: all, each from its first to its last use in a step")
      .only_with({of_a_pipeline})
      .key("gather_ahead", &P::gather_ahead, between(0, 64),
           "zero_stage 3 where parameters are gathered (between hosts, TCP, MPI, arena = false): "
           "the units of so many modules are gathered before their turn")
      .only_with({of_stage_3_or_default})
      .key("reshard_after_forward", &P::reshard_after_forward, any(),
           "zero_stage 3 where parameters are gathered (between hosts, TCP, MPI, arena = false): "
           "they are released after forward and gathered again for backward")
      .only_with({of_stage_3})
      .key("shard_units", &P::shard_units,
           "zero_stage 1 to 3: which modules are flattened, cut and reduced as one: the model's "
           "blocks, those of shard_unit_size, those of "
           "shard_unit_names, or all as one")
      .only_with({of_shards})
      .key("shard_unit_size", &P::shard_unit_size, between(1, 1e12),
           "shard_units = \"size\": a module with so many parameters becomes a unit")
      .only_with({of_shards, of_units_by_size})
      .key("shard_unit_names", &P::shard_unit_names, any(),
           "shard_units = \"names\": paths of modules; * stands for any text")
      .only_with({of_shards})
      .key("reduce_every_micro_batch", &P::reduce_every_micro_batch, any(),
           "zero_stage 2 and 3: gradients are reduced after every micro-batch, so that whole ones "
           "do not outlive it")
      .only_with({of_shards})
      .key("timeout_s", &P::timeout_s, {0, 86400, true, {}},
           "longest wait for another rank in seconds");
  using A = ActivationCheckpointSection;
  Lister<A>(keys, "activation_checkpoint", &JobConfig::activation_checkpoint)
      .key("mode", &A::mode,
           "what blocks keep for backward instead of everything; the rest is computed twice, with "
           "the same bits. full: their input; every_k: every "
           "k-th "
           "block its input; selective: inputs and results of matrix products; budget: the "
           "cheapest ways that fit")
      .key("every_k", &A::every_k, at_least(1), "every_k: blocks k, 2k, 3k ... are recomputed")
      .only_with({of_every_k})
      .key("budget_mb", &A::budget_mb, at_least(0),
           "budget: what the blocks of one rank may hold at once, in MB")
      .only_with({of_budget});
  using C = CheckpointSection;
  Lister<C>(keys, "checkpoint", &JobConfig::checkpoint)
      .key("interval", &C::interval, between(0, 1e12),
           "steps between checkpoints; 0: only at the end and when a signal stops the run")
      .key("at_end", &C::at_end, any(), "the last step is saved too, whatever `interval` says")
      .key("keep_last", &C::keep_last, between(0, 1e6),
           "newest complete checkpoints that are kept; 0: all")
      .key("asynchronous", &C::asynchronous, any(),
           "checkpoints are written behind training, which goes on; those of the end and of a "
           "signal are waited for. The same files either way")
      .key("staging_mb", &C::staging_mb, between(0, 1e9),
           "asynchronous: what of its state a rank may copy, in MB, because the next update comes "
           "before it is written; the update waits for the rest")
      .only_with({of_asynchronous})
      .key("writer_share", &C::writer_share, {0, 1, true, {}},
           "asynchronous: part of one core's time that a rank's writer takes while nothing waits "
           "for it")
      .only_with({of_asynchronous})
      .key("max_file_mb", &C::max_file_mb, between(1, 1e9),
           "a rank begins another file beyond this, in MB; a larger tensor has a file of its own");
  using M = MetricsSection;
  Lister<M>(keys, "metrics", &JobConfig::metrics)
      .key("log_interval", &M::log_interval, between(1, 1e9),
           "steps between lines on a console that is no terminal")
      .key("tensorboard", &M::tensorboard, any(), "write TensorBoard event files")
      .key("memory_steps", &M::memory_steps, between(0, 1e6),
           "first steps of a run of which memory-rank-R.csv says, moment by moment, what the rank "
           "held by category; memory.svg draws the last of "
           "them");
  using V = ValidationSection;
  Lister<V>(keys, "validation", &JobConfig::validation)
      .key("interval", &V::interval, between(0, 1e12),
           "steps between evaluations; 0: only at the end")
      .key("batches", &V::batches, between(0, 1e9),
           "global batches that one evaluation reads; 0: the whole validation split")
      .key("sample_tokens", &V::sample_tokens, between(0, 1e6),
           "tokens: tokens generated and printed at the end of the run; 0: none")
      .only_with({of_tokens})
      .key("sample_prompt", &V::sample_prompt, any(), "tokens: text that the sample continues")
      .only_with({of_tokens, of_samples});
  using D = DebugSection;
  Lister<D>(keys, "debug", &JobConfig::debug)
      .key("seed", &D::seed, between(0, 9007199254740992.0), "of weights, dropout and sample order")
      .key("fault", &D::fault,
           "what goes wrong on purpose: an error, a silent exit, SIGKILL, SIGSTOP, a loss that is "
           "not a number, or a gradient that is infinite")
      .key("fault_step", &D::fault_step, between(0, 1e12),
           "in which step, counted from 1; 0: in none")
      .only_with({of_faults})
      .key("fault_rank", &D::fault_rank, between(0, 1e9), "on which rank")
      .only_with({of_faults})
      .key("fault_action", &D::fault_action, any(),
           "in a pipeline: before which action of that rank in the step, as schedule files write "
           "them: \"1F3\" is the forward pass of micro-batch 3 in stage 1, both counted from 0, "
           "with B for a backward pass (I and W where it is split), SEND_F, RECV_F, SEND_B and "
           "RECV_B for messages; empty: before the step")
      .only_with({of_faults});
}

// The order here is the order of sections and keys in job.md, --print-config and config.toml.
std::vector<ConfigKey> list_keys() {
  std::vector<ConfigKey> keys;
  using J = JobSection;
  Lister<J>(keys, "job", &JobConfig::job)
      .key("name", &J::name, any(),
           "names the run directory, runs/NAME; letters, digits, '.', '_' and '-'")
      .key("description", &J::description, any(), "a line for people, shown when the job starts");
  list_model(keys);
  list_data(keys);
  list_training(keys);
  list_optimization(keys);
  list_precision(keys);
  list_running(keys);
  return keys;
}

template <class T>
const char* type_words() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a text";
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return "a list of whole numbers";
  if constexpr (std::is_same_v<T, std::vector<double>>) return "a list of numbers";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of texts";
}

template <class T>
struct Unwrap {
  using type = T;
};
template <class T>
struct Unwrap<std::optional<T>> {
  using type = T;
};

std::string range_words(const Allowed& allowed) {
  const bool least = allowed.least > -kInfinity;
  const bool most = allowed.most < kInfinity;
  const auto number = [](double value) { return number_text(value); };
  if (least && allowed.above_least) {
    return fmt::format(" above {}{}", number(allowed.least),
                       most ? " and at most " + number(allowed.most) : "");
  }
  if (least && most) {
    return fmt::format(" from {} to {}{}", number(allowed.least),
                       allowed.below_most ? "below " : "", number(allowed.most));
  }
  if (least) return fmt::format(" of at least {}", number(allowed.least));
  return most ? fmt::format(" of at most {}", number(allowed.most)) : "";
}

}  // namespace

std::span<const ConfigKey> all_keys() {
  // Made at first use: other static objects may not exist before.
  static const std::vector<ConfigKey> keys = list_keys();
  return keys;
}

const ConfigKey* find_key(const std::string& section, const std::string& name) {
  const auto keys = all_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return key.section == section && key.name == name;
  });
  return found == keys.end() ? nullptr : &*found;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : all_keys())
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  return names;
}

std::string describe_allowed(const ConfigKey& key) {
  if (key.path() == "model.name")
    return fmt::format("one of {}", fmt::join(model::model_names(), ", "));
  if (!key.allowed.words.empty())
    return fmt::format("one of \"{}\"", fmt::join(key.allowed.words, "\", \""));
  JobConfig defaults;
  const auto type = []<class T>(const T&) -> std::string {
    if constexpr (std::is_same_v<T, ChoicePlace>) {
      return type_words<std::string>();
    } else {
      return type_words<typename Unwrap<std::remove_pointer_t<T>>::type>();
    }
  };
  return std::visit(type, key.place(defaults)) + range_words(key.allowed);
}

std::string value_text(const ConfigKey& key, const JobConfig& config) {
  const auto text = []<class T>(const T& place) -> std::string {
    if constexpr (std::is_same_v<T, ChoicePlace>) {
      const std::string name = place.get();
      return name.empty() ? name : toml_text(name);
    } else if constexpr (requires { place->has_value(); }) {
      return *place ? toml_text(**place) : std::string();
    } else {
      return toml_text(*place);
    }
  };
  // The table's accessors give mutable places; nothing is written through this one.
  return std::visit(text, key.place(const_cast<JobConfig&>(config)));
}

}  // namespace shoal::train
