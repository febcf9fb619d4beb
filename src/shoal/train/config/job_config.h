#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/train/config/choices.h"

namespace shoal::train {

/// A job file as plain data: one struct a section, each key with the default that a user would
/// want. The table in keys.cpp repeats every key with its range and its words for the reader;
/// parsing, printing and the reference page come from that table. A count of 0 means what its
/// comment says; an `optional` that is empty was not set.

struct JobSection {
  std::string name = "job";  ///< names the run directory runs/<name>
  std::string description;   ///< shown when the job starts
};

/// A named size with changes, or, with `name` empty, the whole shape. What is empty keeps the named
/// size's value.
struct ModelSection {
  std::string name;                   ///< a named size of model::model_names()
  std::optional<std::string> family;  ///< "transformer" or "mlp"; only without a name
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, head_size, ffn;
  std::optional<std::int64_t> vocab;     ///< rows of the embedding; 0: what the tokenizer needs,
                                         ///< rounded up to a multiple of 64
  std::optional<std::int64_t> sequence;  ///< longest sequence; 0: training.sequence_length
  std::optional<bool> tied_embeddings, bias, qkv_bias, qk_norm, gated;
  std::optional<std::string> positions;  ///< "learned", "rotary"
  std::optional<double> rope_theta;
  std::optional<std::string> norm;  ///< "layer", "rms"
  std::optional<double> norm_epsilon, dropout, init_std;
  std::optional<std::string>
      activation;  ///< "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"
  std::optional<std::int64_t> inputs, outputs;  ///< of an MLP; 0: what the data has
  std::optional<std::vector<std::int64_t>> widths;
};

struct DataSection {
  DataKind source = DataKind::kTokens;

  // Of `tokens`: folders that `shoal data prepare` wrote, mixed in proportion to their weights.
  std::vector<std::string> folders;
  std::vector<double> weights;  ///< one a folder; empty: by their number of tokens

  // What to prepare before training when folders[0] holds no data set yet.
  DataPreparation prepare = DataPreparation::kNothing;
  std::vector<std::string> prepare_from;  ///< files and folders; only with "files"
  TokenizerChoice tokenizer = TokenizerChoice::kBpe;
  std::int64_t vocab_size = 4096;  ///< entries of the BPE tokenizer, at most

  // Of tables.
  std::string file;    ///< digits: empty for the copy that ships with Shoal; csv: the file
  std::string target;  ///< csv: column name or index of what is to be learnt; empty: the last
  TableTask task = TableTask::kClassification;  ///< csv
  std::int64_t samples = 4096;                  ///< regression: how many samples to make
  std::int64_t features = 8;                    ///< regression: inputs of each
  double noise = 0.1;                           ///< regression: standard deviation of the noise
  double validation_fraction = 0.2;             ///< of tables: the part kept for validation
};

/// The global batch is the truth: micro-batch and accumulation never change what is learnt.
struct TrainingSection {
  std::optional<std::int64_t>
      global_batch_sequences;  ///< sequences (or table rows) a step, over all ranks
  std::optional<std::int64_t> global_batch_tokens;  ///< the same in tokens; one of both
  std::int64_t micro_batch = 0;        ///< sequences a rank runs at once; 0: its whole share
  std::int64_t sequence_length = 256;  ///< tokens; of token data
  std::optional<std::int64_t> steps,
      tokens;  ///< length of the run: exactly one of steps, tokens and epochs
  std::optional<double> epochs;
  LossKind loss = LossKind::kAuto;
};

struct OptimizerSection {
  OptimizerKind name = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  ///< adamw
  double momentum = 0.9;                             ///< sgd
  bool nesterov = false;                             ///< sgd
  double weight_decay = 0.1;                         ///< of matrices; biases and norms do not decay
  double clip_norm = 1.0;  ///< global gradient norm above which gradients are scaled down; 0: never
  std::string state_folder;  ///< state lies in files there, mapped into memory; empty: in memory
};

struct PrecisionSection {
  Precision type = Precision::kFp32;    ///< type of the weight matrices
  std::vector<std::string> parameters;  ///< exceptions by name: "pattern=type"
  bool master_weights = true;  ///< 16-bit weights are rounded copies of float32 ones; false: bf16
                               ///< weights are all there is
  // Each of these is kFp32 or kBf16.
  Precision gradients = Precision::kFp32;  ///< gradients are added up and sent in this type
  Precision moments = Precision::kFp32;    ///< adamw: its two moments are kept in this type
  Precision gathers = Precision::kFp32;    ///< fp32 parameters are sent between ranks in this type
  double loss_scale = 65536;               ///< fp16: where the loss scale begins
  std::int64_t loss_scale_growth_interval =
      2000;  ///< fp16: steps without overflow after which it doubles
};

struct SchedulerSection {
  SchedulerKind name = SchedulerKind::kCosine;
  std::int64_t warmup_steps = 0;  ///< linear rise from 0
  double decay_fraction =
      0.2;                   ///< wsd: the part of all steps, at the end, over which the rate falls
  double final_ratio = 0.1;  ///< last learning rate / optimizer.learning_rate
};

struct ParallelismSection {
  std::int64_t ranks =
      1;  ///< started by Shoal's own launcher; under another launcher its number counts
  bool in_process = false;            ///< ranks are threads of one process
  std::int64_t threads_per_rank = 0;  ///< 0: cores / ranks on the host
  bool pin_cores = false;             ///< each rank keeps to its own cores
  bool arena = true;                  ///< tensors live in memory that the ranks of the host see
  double memory_limit_mb =
      0;  ///< what tensors of one rank may take; 0: its share of what the host has free
  Transport transport = Transport::kAuto;  ///< carries the bytes between ranks
  std::string interface;  ///< TCP: name or address prefix of the network interface; empty: the one
                          ///< that leads to rank 0
  std::string ports =
      "0";  ///< TCP: "first-last", of which a rank listens on the first free one; "0": any
  std::string
      algorithms;  ///< TCP: "all_reduce=ring,broadcast=direct" in place of the choice by cost
  std::string
      link_costs;  ///< TCP: cluster file by whose [tcp] algorithms are chosen; empty: by defaults
  bool in_rank_order = false;  ///< reductions fold in the order of ranks, whatever carries them
  double bucket_mb = 25;  ///< size of a gradient bucket where gradients are copied to travel, MB
  std::int64_t zero_stage =
      0;  ///< 0: every rank holds all; 1, 2, 3: shards of optimizer state, gradients, parameters
  std::int64_t data_parallel_shard_degree = -1;  ///< ranks among which state is cut; -1: the rest
  std::int64_t data_parallel_replicate_degree = 1;  ///< copies of the whole
  std::int64_t gather_ahead = 1;                    ///< stage 3 without shared memory: units
  bool reshard_after_forward = true;                ///< stage 3 without shared memory
  ShardUnits shard_units = ShardUnits::kBlock;
  std::int64_t shard_unit_size = 1'000'000;   ///< parameters; of "size"
  std::vector<std::string> shard_unit_names;  ///< of "names"
  bool reduce_every_micro_batch = false;      ///< stage 2 and 3
  double timeout_s = 60;                      ///< longest wait for another rank, seconds
};

struct ActivationCheckpointSection {
  RecomputeMode mode = RecomputeMode::kNone;
  std::int64_t every_k = 2;  ///< every_k: which blocks
  double budget_mb = 0;      ///< budget: what blocks may hold, MB
};

struct CheckpointSection {
  std::int64_t interval = 500;  ///< steps; 0: only at the end and on a signal
  bool at_end = true;           ///< the last step is saved whatever `interval` says
  std::int64_t keep_last = 2;   ///< complete checkpoints that stay; 0: all
  bool asynchronous = true;     ///< written behind training
  double staging_mb = 512;      ///< asynchronous: what of a rank's state may be held twice, MB
  double writer_share =
      0.2;  ///< asynchronous: the part of one core's time that a rank's writer takes
  std::int64_t max_file_mb = 4096;  ///< a rank begins another file beyond this, MB
};

struct MetricsSection {
  std::int64_t log_interval = 10;  ///< steps between lines where the console is no terminal
  bool tensorboard = true;         ///< write event files
  std::int64_t memory_steps = 2;  ///< first steps whose memory is written moment by moment; 0: none
};

struct ValidationSection {
  std::int64_t interval = 250;  ///< steps; 0: only at the end
  std::int64_t batches = 16;    ///< global batches an evaluation reads; 0: the whole split
  std::int64_t sample_tokens =
      0;  ///< tokens generated and printed at the end; 0: none. Of token data
  std::string sample_prompt = "\n";  ///< what they continue
};

struct DebugSection {
  std::int64_t seed = 0;        ///< of weights, dropout and sample order
  Fault fault = Fault::kNone;   ///< goes wrong on purpose
  std::int64_t fault_step = 0;  ///< in which step, counted from 1; 0: in none
  std::int64_t fault_rank = 0;  ///< on which rank
};

struct JobConfig {
  JobSection job;
  ModelSection model;
  DataSection data;
  TrainingSection training;
  OptimizerSection optimizer;
  PrecisionSection precision;
  SchedulerSection lr_scheduler;
  ParallelismSection parallelism;
  ActivationCheckpointSection activation_checkpoint;
  CheckpointSection checkpoint;
  MetricsSection metrics;
  ValidationSection validation;
  DebugSection debug;
};

}  // namespace shoal::train
