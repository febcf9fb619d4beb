#include "shoal/train/config/conditions.h"
#include "shoal/train/config/key_lister.h"

namespace shoal::train {

namespace {

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

}  // namespace

void list_learning_keys(std::vector<ConfigKey>& keys) {
  list_data(keys);
  list_training(keys);
  list_optimization(keys);
  list_precision(keys);
}

}  // namespace shoal::train
