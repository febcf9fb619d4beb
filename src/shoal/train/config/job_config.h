#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/train/config/choices.h"

namespace shoal::train {

/// A job file as plain data: one struct a section, each key with the default that a user would
/// want. The tables in *_keys.cpp list every key with its range, its conditions and its line of the
/// reference page; parsing, printing and that page come from them. An `optional` that is empty
/// was not set.

struct JobSection {
  std::string name = "job";  ///< the run directory is runs/<name>
  std::string description;   ///< printed when the job starts
};

/// A named size with changes, or, with `name` empty, the whole shape. A key that is empty keeps the
/// value of the named size.
struct ModelSection {
  std::string name;  ///< a named size of model::model_names()
  std::string from;  ///< weights to start from: a Hugging Face folder or a checkpoint; no name then
  std::optional<model::Family> family;  ///< only without a name
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, head_size, ffn;
  /// Rows of the embedding; 0: as many as the tokenizer needs, rounded up to a multiple of 64.
  std::optional<std::int64_t> vocab;
  std::optional<std::int64_t> sequence;  ///< longest sequence; 0: training.sequence_length
  std::optional<bool> tied_embeddings, bias, qkv_bias, qk_norm, gated;
  std::optional<model::Positions> positions;
  std::optional<double> rope_theta;
  std::optional<model::Norm> norm;
  std::optional<double> norm_epsilon, dropout, init_std;
  std::optional<model::Activation> activation;
  std::optional<std::int64_t> experts, experts_per_token, shared_ffn, dense_layers, dense_ffn;
  std::optional<model::RouterScore> router_score;
  std::optional<bool> normalize_gates, router_bias;
  std::optional<double> gate_scale, router_bias_rate, balance_loss, capacity_factor;
  std::optional<std::int64_t> inputs, outputs;  ///< mlp; 0: as many as the data has
  std::optional<std::vector<std::int64_t>> widths;
};

struct DataSection {
  DataKind source = DataKind::kTokens;

  // Keys of token data.
  std::vector<std::string> folders;  ///< `shoal data prepare` wrote them
  std::vector<double> weights;       ///< shares of the folders; empty: by their number of tokens
  /// Prepares folders[0] before training when it holds no data set yet.
  DataPreparation prepare = DataPreparation::kNothing;
  std::vector<std::string> prepare_from;  ///< files and folders; only with kFiles
  TokenizerChoice tokenizer = TokenizerChoice::kBpe;
  std::int64_t vocab_size = 4096;  ///< entries of the BPE tokenizer, at most
  bool document_mask = false;      ///< tokens see those of their own document only

  // Keys of tables.
  std::string file;    ///< digits: empty for the copy that ships with Shoal; csv: the file
  std::string target;  ///< csv: name or index of the column to be learnt; empty: the last
  TableTask task = TableTask::kClassification;  ///< csv
  std::int64_t samples = 4096;                  ///< regression: rows to make
  std::int64_t features = 8;                    ///< regression: inputs of each row
  double noise = 0.1;                           ///< regression: standard deviation of the noise
  double validation_fraction = 0.2;             ///< part of the rows that is kept for validation
};

/// The global batch decides what is learnt; micro-batch and accumulation never change it.
struct TrainingSection {
  // One of both: the size of a step over all ranks.
  std::optional<std::int64_t> global_batch_sequences;  ///< sequences, or rows of a table
  std::optional<std::int64_t> global_batch_tokens;
  std::int64_t micro_batch = 0;        ///< sequences a rank runs at once; 0: its whole share
  std::int64_t sequence_length = 256;  ///< tokens
  // One of the three: the length of the run.
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> tokens;
  std::optional<double> epochs;
  LossKind loss = LossKind::kAuto;
};

struct OptimizerSection {
  OptimizerKind name = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9;         ///< adamw
  double beta2 = 0.95;        ///< adamw
  double epsilon = 1e-8;      ///< adamw
  double momentum = 0.9;      ///< sgd
  bool nesterov = false;      ///< sgd
  double weight_decay = 0.1;  ///< applies to matrices; biases and norms do not decay
  double clip_norm = 1.0;     ///< gradients with a larger global norm are scaled down; 0: never
  std::string state_folder;   ///< state lies in files there, mapped into memory; empty: in memory
};

struct PrecisionSection {
  Precision type = Precision::kFp32;    ///< type of the weight matrices
  std::vector<std::string> parameters;  ///< exceptions by name: "pattern=type"
  /// 16-bit weights are rounded copies of fp32 ones; false: bf16 weights are all there is.
  bool master_weights = true;
  // Each of these is kFp32 or kBf16.
  Precision gradients = Precision::kFp32;  ///< gradients are added up and sent in this type
  Precision moments = Precision::kFp32;    ///< adamw: its two moments are kept in this type
  Precision gathers = Precision::kFp32;    ///< fp32 parameters are sent between ranks in this type
  double loss_scale = 65536;               ///< fp16: the first loss scale
  std::int64_t loss_scale_growth_interval = 2000;  ///< fp16: it doubles after so many good steps
};

struct SchedulerSection {
  SchedulerKind name = SchedulerKind::kCosine;
  std::int64_t warmup_steps = 0;  ///< the rate rises linearly from 0
  double decay_fraction = 0.2;    ///< wsd: the rate falls over this last part of all steps
  double final_ratio = 0.1;       ///< last learning rate / optimizer.learning_rate
};

struct ParallelismSection {
  std::int64_t ranks = 1;   ///< Shoal's launcher starts so many; another launcher's number counts
  bool in_process = false;  ///< ranks are threads of one process
  DeviceKind device = DeviceKind::kCpu;  ///< where parameters lie and ranks compute
  std::int64_t threads_per_rank = 0;     ///< 0: cores / ranks on the host
  bool pin_cores = false;                ///< each rank keeps to its own cores
  bool arena = true;                     ///< tensors live in memory that all ranks of the host map
  double memory_limit_mb = 0;  ///< limit of one rank's tensors; 0: its share of the free memory
  Transport transport = Transport::kAuto;
  std::string interface;    ///< TCP: name or address prefix; empty: the one that leads to rank 0
  std::string advertise;    ///< TCP: where others reach this host's ranks; empty: where they listen
  std::string ports = "0";  ///< TCP: "first-last", the first free one is taken; "0": any
  std::int64_t rails = 0;   ///< TCP: connections between two ranks; 0: by their round trip
  double silence_s = 0;     ///< TCP: after which a rank is lost, seconds; 0: by the round trip
  wire::TlsMode tls = wire::TlsMode::kAuto;  ///< TCP: connections that are encrypted
  /// TCP: whether the links between ranks that are far apart are measured.
  collective::RouteMode routes = collective::RouteMode::kNatural;
  std::string algorithms;      ///< TCP: "all_reduce=ring,broadcast=direct"; empty: chosen by cost
  std::string link_costs;      ///< TCP: a cluster file with the costs; empty: defaults
  bool in_rank_order = false;  ///< reductions add in the order of ranks over every transport
  double bucket_mb = 25;       ///< size of a gradient bucket where gradients are copied to be sent
  /// 0: every rank holds all; 1, 2, 3: shards of optimizer state, gradients, parameters.
  std::int64_t zero_stage = 0;
  std::int64_t data_parallel_shard_degree = -1;     ///< ranks that share one copy; -1: the rest
  std::int64_t data_parallel_replicate_degree = 1;  ///< copies of the whole
  std::int64_t tensor_parallel_degree = 1;   ///< ranks that divide every matrix and the stream
  std::vector<std::string> layouts;          ///< rules in front of the default recipe
  std::int64_t context_parallel_degree = 1;  ///< ranks that divide every sequence
  ContextParallelMethod context_parallel_method = ContextParallelMethod::kRing;
  std::int64_t expert_parallel_degree = 1;    ///< ranks that divide the experts of a block
  std::int64_t pipeline_parallel_degree = 1;  ///< ranks that have stages of the model
  std::string pipeline_parallel_schedule = "1f1b";
  std::string pipeline_parallel_schedule_csv;               ///< a file instead; empty: none
  std::int64_t pipeline_parallel_virtual_stages = 1;        ///< stages of a rank; "interleaved"
  std::vector<std::int64_t> pipeline_parallel_stage_units;  ///< empty: divided by cost or count
  StagesBy pipeline_parallel_stages_by = StagesBy::kCost;   ///< where no list is given
  /// A rank updates before the norm over all ranks is known, and takes a wrong update back.
  bool pipeline_parallel_post_validation = false;
  std::int64_t pipeline_parallel_gathered_stages = 0;  ///< with ZeRO-3, at once; 0: all of a rank
  std::int64_t gather_ahead = 1;      ///< stage 3: modules whose units are gathered early
  bool reshard_after_forward = true;  ///< stage 3
  ShardUnits shard_units = ShardUnits::kBlock;
  std::int64_t shard_unit_size = 1'000'000;   ///< parameters; with kSize
  std::vector<std::string> shard_unit_names;  ///< with kNames
  bool reduce_every_micro_batch = false;      ///< stage 2 and 3
  double timeout_s = 60;                      ///< longest wait for another rank, seconds
};

/// Members are the data-parallel ranks, each with its block of the other axes; with ZeRO the copies
/// of the sharded state.
struct LowCommunicationSection {
  LowCommunication method = LowCommunication::kNone;
  std::int64_t every = 500;    ///< steps between two exchanges of the same parameters
  double learning_rate = 0.7;  ///< diloco, streaming_diloco: of the outer optimizer
  double momentum = 0.9;       ///< diloco, streaming_diloco: Nesterov's, of the outer optimizer
  collective::Codec codec = collective::Codec::kNone;  ///< in which differences travel
  CodecRounding rounding = CodecRounding::kNearest;    ///< with a codec
  MemberShares shares = MemberShares::kEven;           ///< of an elastic group
  std::int64_t fragments = 4;                          ///< streaming_diloco
  std::int64_t overlap_steps =
      1;             ///< streaming_diloco: steps from sending to the use of the result
  double mix = 0.5;  ///< streaming_diloco: what a member keeps of its own parameters at an exchange
};

/// The ranks that one launcher has started are one member of a group whose members come and go.
struct ElasticSection {
  bool enabled = false;
  std::vector<std::string> join;     ///< HOST:PORT of members; empty: it begins a group
  std::string listen = "127.0.0.1";  ///< where the others find this member
  std::string ports = "0";
  std::string advertise;     ///< where the others reach this member; empty: where it listens
  std::string key_file;      ///< has the secret of the group; empty: none, on one host
  std::string token_key;     ///< of those that begin a group: to its join tokens; empty: no tokens
  std::string token_file;    ///< of those that join: has a token; empty: none
  std::int64_t members = 1;  ///< that the first step of this start waits for
  double suspect_after_s = 2;  ///< a member that is silent for so long is removed
  OnQuorumLoss on_quorum_loss = OnQuorumLoss::kStop;
  double quorum_patience_s = 10;  ///< before that
  std::vector<std::string> etcd;  ///< "http://HOST:PORT" of its servers; empty: members decide
  std::string etcd_ca_file;       ///< that signs them, for https; empty: those of the system
  double etcd_patience_s = 60;    ///< with an etcd that does not answer
  double step_timeout_s = 1800;   ///< for a step with all its attempts, and a joiner's first one
};

struct ActivationCheckpointSection {
  RecomputeMode mode = RecomputeMode::kNone;
  std::int64_t every_k = 2;  ///< kEveryK: blocks k, 2k, 3k ... are recomputed
  double budget_mb = 0;      ///< kBudget: the blocks may hold so much, MB
};

struct CheckpointSection {
  std::int64_t interval = 500;      ///< steps; 0: only at the end and on a signal
  bool at_end = true;               ///< the last step is saved whatever `interval` says
  std::int64_t keep_last = 2;       ///< complete checkpoints that stay; 0: all
  bool asynchronous = true;         ///< written behind training
  double staging_mb = 512;          ///< asynchronous: the most of its state that a rank copies, MB
  double writer_share = 0.2;        ///< asynchronous: part of one core's time that a writer takes
  std::int64_t max_file_mb = 4096;  ///< a rank begins another file beyond this, MB
};

struct MetricsSection {
  std::int64_t log_interval = 10;         ///< steps between lines where the console is no terminal
  bool tensorboard = true;                ///< write event files
  std::int64_t memory_steps = 2;          ///< first steps with a memory timeline; 0: none
  std::vector<std::int64_t> trace_steps;  ///< first and last step of trace.json; empty: none
  std::string prometheus;  ///< "HOST:PORT" of the endpoint for Prometheus; empty: none
};

struct ValidationSection {
  std::int64_t interval = 250;       ///< steps; 0: only at the end
  std::int64_t batches = 16;         ///< global batches an evaluation reads; 0: the whole split
  std::int64_t sample_tokens = 0;    ///< token data: generated and printed at the end; 0: none
  std::string sample_prompt = "\n";  ///< the sample continues it
};

/// Places in the work of an elastic member where a fault may happen.
namespace member_place {
inline constexpr const char* kView = "view";      ///< before it connects to those of a new view
inline constexpr const char* kGive = "give";      ///< when it gives its state to joiners
inline constexpr const char* kTake = "take";      ///< when it has taken the state as a joiner
inline constexpr const char* kReduce = "reduce";  ///< in the middle of the sum of gradients
inline constexpr const char* kUpdate = "update";  ///< behind the update, before the others are told
inline constexpr const char* kReport = "report";  ///< when the others are told
inline constexpr const char* kCommit = "commit";  ///< when it has learnt that all have committed
inline constexpr std::array kAll = {kView, kGive, kTake, kReduce, kUpdate, kReport, kCommit};
}  // namespace member_place

struct DebugSection {
  std::int64_t seed = 0;        ///< decides weights, dropout and sample order
  Fault fault = Fault::kNone;   ///< injected on purpose
  std::int64_t fault_step = 0;  ///< step of the fault, counted from 1; 0: none
  std::int64_t fault_rank = 0;  ///< rank of the fault
  /// The action of that rank before which it happens, "1B3", or a member_place; empty: before the
  /// step.
  std::string fault_action;
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
  LowCommunicationSection low_communication;
  ElasticSection elastic;
  ActivationCheckpointSection activation_checkpoint;
  CheckpointSection checkpoint;
  MetricsSection metrics;
  ValidationSection validation;
  DebugSection debug;
};

}  // namespace shoal::train
