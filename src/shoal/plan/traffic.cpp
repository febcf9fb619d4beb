#include "shoal/plan/traffic.h"

#include <algorithm>
#include <cmath>

#include "shoal/plan/logits_recomputation.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/recipe_traffic.h"
#include "shoal/plan/topology.h"

namespace shoal::plan {
namespace {

/// Returns the share of an all-gather, a reduce-scatter or an all-reduce that crosses the link
/// between hosts. If each host has several members, they divide that share among them.
double between_share(const GroupShape& group) {
  if (group.hosts == 1) return 0;
  if (group.inside == 1) return 1;
  // (hosts - 1) / hosts of bytes / inside, over (n - 1) / n of bytes.
  return exchanged_share(group.hosts) / static_cast<double>(group.inside) /
         exchanged_share(group.ranks());
}

/// Returns the share of an all-to-all that goes to members on other hosts.
double between_share_of_exchange(const GroupShape& group) {
  return group.hosts == 1 ? 0
                          : static_cast<double>(group.ranks() - group.inside) /
                                static_cast<double>(group.ranks() - 1);
}

/// Returns the number format of a job as it is sent. Shoal's activations are fp32 whatever its
/// weights are, on their way as in memory, and its states have the types of the job.
Precision sent_numbers(const Training& training, const Cluster& cluster) {
  Precision number = *precision(training.precision, training.optimizer);
  if (cluster.runtime != Runtime::kShoal) return number;
  number.activation_bytes = number.dispatch_bytes = 4;
  if (training.states) number.state = *training.states;
  return number;
}

/// The traffic of one step by technique. Every function returns what one device sends for one
/// technique, and zeros where the job does not use it.
class StepTraffic {
 public:
  StepTraffic(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec),
        training_(training),
        cluster_(cluster),
        degrees_(training.degrees),
        number_(sent_numbers(training, cluster)),
        micro_batches_(static_cast<double>(training.micro_batches())),
        held_(held_by_rank(spec, training)),
        gathered_(gathered_by_rank()),
        dense_(dense_ranks(cluster, training)),
        replicated_(replicated_ranks(cluster, training)),
        experts_(expert_ranks(cluster, training)) {
    if (spec.family == Family::kMlp) return;
    samples_ = static_cast<double>(training.micro_batch);
    length_ = static_cast<double>(training.length(spec)) / static_cast<double>(degrees_.cp);
    hidden_ = static_cast<double>(spec.hidden);
    layers_ = most_blocks_of_a_rank(1, 1);
    mixtures_ = most_blocks_of_a_rank(0, 1);
  }

  struct Bytes {
    double all = 0;
    double between = 0;

    Bytes operator+(const Bytes& other) const { return {all + other.all, between + other.between}; }
  };

  /// Gradients of replicated parameters: an all-reduce a step, or one a micro-batch.
  Bytes data() const {
    if (training_.zero_stage != 0) return {};
    return most_of_a_rank([&](const Part& part, const DataRanks& ranks) {
      // An all-reduce sends 2 (n - 1) / n of the buffer, the least that is possible.
      return over_shards(gradient_reductions() * 2 * part.held * gradient(), ranks);
    });
  }

  /// ZeRO: gradients are scattered to their owners, parameters gathered from them.
  Bytes shard() const {
    if (training_.zero_stage == 0) return {};
    return most_of_a_rank([&](const Part& part, const DataRanks& ranks) {
      // Gathers in 8 bits for the forward pass, gradients in 4; the second gather is
      // second_shard()'s.
      if (training_.zero_plus_plus) {
        const auto each = zero_plus_plus_bytes(ranks.shards.ranks(), ranks.shards.inside);
        const double bytes = micro_batches_ * part.held * each.shards;
        return Bytes{bytes, bytes * between_share_of_shards(ranks)};
      }
      return over_shards(
          gradient_reductions() * part.held * gradient() + part.gathered * parameter(), ranks);
    });
  }

  /// ZeRO++: parameters are gathered for the backward pass from the host's own set of shards.
  Bytes second_shard() const {
    const bool gathered_again = training_.zero_plus_plus && training_.reshard_after_forward;
    if (training_.zero_stage == 0 || !gathered_again) return {};
    return most_of_a_rank([&](const Part& part, const DataRanks& ranks) {
      const auto each = zero_plus_plus_bytes(ranks.shards.ranks(), ranks.shards.inside);
      return Bytes{micro_batches_ * part.held * each.inside, 0};
    });
  }

  /// Hybrid sharding: an all-reduce of each rank's shard of the gradients over the replicas.
  Bytes replica() const {
    if (training_.zero_stage == 0) return {};
    // Others sum the shards of all micro-batches first; Shoal sums what each reduction brings.
    const double times = shoal() ? gradient_reductions() : 1;
    return most_of_a_rank([&](const Part& part, const DataRanks& ranks) {
      const double shard = part.held / static_cast<double>(ranks.shards.ranks());
      const double bytes = times * 2 * exchanged_share(ranks.replicas.ranks()) * shard * gradient();
      return Bytes{bytes, bytes * between_share(ranks.replicas)};
    });
  }

  /// Members: an all-reduce of what each rank owns, over the members, in one of `every` steps. The
  /// mean of a step; an exchange is `every` times as much.
  Bytes members() const {
    if (!training_.exchange) return {};
    const GroupShape group = replica_group(cluster_, degrees_);
    const double values = 2 * exchanged_share(group.ranks()) * training_.exchange->sent_bytes /
                          training_.exchange->every;
    return most_of_a_rank([&](const Part& part, const DataRanks& ranks) {
      const double shards =
          training_.zero_stage >= 1 ? static_cast<double>(ranks.shards.ranks()) : 1;
      const double bytes = part.held / shards * values;
      return Bytes{bytes, bytes * between_share(group)};
    });
  }

  /// Over the link to the host's memory: gradients there, parameters back. If the parameters stay
  /// there too, their shard comes again for every gather.
  Bytes offload() const {
    if (!training_.offload_optimizer) return {};
    const double passes = training_.reshard_after_forward ? 2 : 1;
    const double fetches = training_.offload_parameters ? micro_batches_ * passes : 1;
    const double moved = gradient() + fetches * parameter();
    return most_of_a_rank([&](const Part& part, const DataRanks& ranks) {
      const double shards =
          training_.zero_stage >= 1 ? static_cast<double>(ranks.shards.ranks()) : 1;
      return Bytes{part.held / shards * moved, 0};
    });
  }

  Bytes tensor() const {
    const double elements = training_.division ? by_recipe() : by_default_recipe();
    const double bytes =
        number_.activation_bytes * micro_batches_ * (elements + sharing_blocks() * shared_heads());
    return {bytes, bytes * between_share(tensor_group(cluster_, degrees_))};
  }

  /// The split token table: activations of embedding and head, and for the loss three fp32 numbers
  /// a token, there and back. In Shoal every rank gets the two fp64 numbers of all others.
  Bytes vocabulary() const {
    const double tokens = samples_ * length_;
    const bool output = training_.output_cut();
    // Two all-reduces of b s h (the embedding's output, the gradient of the head's input), each
    // sent twice.
    const double ends = (training_.tokens_cut() ? 2 : 0) + (output ? 2 : 0);
    const double activations = number_.activation_bytes * ends * tokens * hidden_;
    const double losses =
        shoal() ? 8 * 2 * tokens * static_cast<double>(degrees_.tp) : 4 * 3 * 2 * tokens;
    const double bytes =
        exchanged_share(degrees_.tp) * micro_batches_ * (activations + (output ? losses : 0));
    return {bytes, bytes * between_share(tensor_group(cluster_, degrees_))};
  }

  Bytes pipeline() const {
    if (degrees_.pp == 1) return {};
    const double message =
        number_.activation_bytes * samples_ * length_ * hidden_ / sequence_ranks();
    const double bytes = micro_batches_ * messages_of_a_micro_batch() * message;
    return {bytes, pipeline_crosses_hosts(cluster_, degrees_) ? bytes : 0};
  }

  Bytes context() const {
    const auto keys = static_cast<double>(spec_.kv_heads * spec_.head_size);
    const auto queries = static_cast<double>(spec_.heads * spec_.head_size);
    const GroupShape group = context_group(cluster_, degrees_);
    const double scale = number_.activation_bytes * micro_batches_ * attending_blocks();
    const bool lent = shoal() && context_ranks_share_memory(cluster_, degrees_);
    if (training_.ulysses) {
      if (lent) return {};
      // Forward and backward exchange as much; the repeated forward pass adds half of both.
      const double passes = 1 + repeats_blocks() / 2;
      const double bytes =
          scale * passes * ulysses_elements(degrees_.cp, samples_, length_, queries, keys);
      return {bytes, bytes * between_share_of_exchange(group)};
    }
    // The ring goes round once forward and twice backward, and once more for a repeated forward
    // pass. Where ranks of Shoal share a host, they lend each other keys and values: of the three
    // only the gradients travel.
    const double passes = lent ? 1.0 / 3 : 1 + repeats_blocks() / 3;
    const double bytes = scale * passes * context_elements(degrees_.cp, samples_, length_, keys);
    return {bytes, bytes * between_share(group)};
  }

  Bytes expert() const {
    const GroupShape group = expert_group(cluster_, training_);
    const bool lent = shoal() && expert_ranks_share_memory(cluster_, training_);
    if (spec_.experts == 0 || lent) return {};
    const double block = expert_elements(degrees_.ep, tokens_to_route(), visits(), hidden_);
    // A repeated forward pass sends rows to their experts and back, whatever it kept of them.
    const double once = expert_bytes(number_, false);
    const double again = repeats_blocks() * (expert_bytes(number_, true) - once);
    const double bytes = (once + again) * micro_batches_ * mixtures_ * block;
    return {bytes, bytes * between_share_of_exchange(group)};
  }

  /// An expert's tensor ranks gather the rows of all of them and scatter the sums of their results.
  Bytes expert_tensor() const {
    if (spec_.experts == 0) return {};
    const double rows = tokens_to_route() * visits() * expert_copies(training_);
    // A gather and a scatter forward, as many backward, and again in a repeated forward pass.
    const double exchanges = recomputes_all() ? 6 : 4;
    const double bytes = number_.activation_bytes * micro_batches_ * mixtures_ * exchanges * rows *
                         hidden_ * exchanged_share(training_.expert_tensor);
    return {bytes, bytes * between_share(expert_tensor_group(cluster_, training_))};
  }

 private:
  /// Returns the elements that a tensor rank sends for each micro-batch in its blocks.
  double by_default_recipe() const {
    // Sequence parallelism gathers the inputs of two products once more in the backward pass. Shoal
    // keeps them, and gathers them again where a block keeps the results of products alone: two of
    // the eight exchanges of a block.
    const double gathers = shoal() ? share_that_keeps(Keep::kProducts) : 1;
    const double gathered_again = training_.sequence_parallel ? 2 * samples_ * length_ * hidden_ *
                                                                    exchanged_share(degrees_.tp)
                                                              : 0;
    // In a block with experts this counts attention alone; expert_tensor() counts the experts.
    const double halves = most_blocks_of_a_rank(1, 0.5);
    const double once = tensor_elements(degrees_.tp, samples_, length_, hidden_, false);
    const double repeated = tensor_elements(degrees_.tp, samples_, length_, hidden_, true) - once;
    return halves * (once + share_that_keeps(Keep::kInput) * repeated + gathers * gathered_again);
  }

  /// The same by the moves of a recipe.
  double by_recipe() const {
    const bool shared = shoal() && tensor_ranks_share_memory(cluster_, degrees_);
    return most_of_a_pipeline([&](std::int64_t block) {
      const auto& kept = training_.kept;
      const Keep keep = kept.empty() ? keeps_all() : kept[static_cast<std::size_t>(block)];
      return recipe_elements(spec_, training_, block, keep, shared);
    });
  }

  /// Elements that a tensor rank sends in a block where Shoal has more of them than key-value
  /// heads: the ranks of a head cut its group of rows, queries with key and value, and gather it;
  /// the gradient of the gathered rows is summed and scattered.
  double shared_heads() const {
    if (!shoal() || degrees_.tp == 1) return 0;
    const std::int64_t sharers = degrees_.tp / spec_.kv_heads;
    if (sharers <= 1) return 0;
    const auto group = static_cast<double>((spec_.heads / spec_.kv_heads + 2) * spec_.head_size);
    return (2 + repeats_blocks()) * samples_ * length_ * group * exchanged_share(sharers);
  }
  /// Returns the blocks in which a rank attends, on the pipeline rank that has most of them, each
  /// times its share of heads or samples.
  double attending_blocks() const {
    if (!training_.division) return layers_ / static_cast<double>(degrees_.tp);
    return most_of_a_pipeline([&](std::int64_t block) {
      const model::Boundary heads = training_.division_of(block).qkv.output;
      return 1 / model::parts_at(heads, static_cast<double>(degrees_.tp));
    });
  }
  /// Returns the blocks in which ranks share heads, on the pipeline rank that has most of them.
  double sharing_blocks() const {
    if (!training_.division) return layers_;
    return most_of_a_pipeline([&](std::int64_t block) {
      const auto& qkv = training_.division->blocks[static_cast<std::size_t>(block)].qkv;
      return qkv.needs == model::Boundary::kReplicate ? 1.0 : 0.0;
    });
  }
  double parameter() const { return number_.state.parameter; }
  double gradient() const { return number_.state.gradient; }
  bool shoal() const { return cluster_.runtime == Runtime::kShoal; }
  /// Returns the share of the blocks that keep so much. Selective recomputation of other systems
  /// repeats nothing that sends.
  double share_that_keeps(Keep keep) const {
    const auto& kept = training_.kept;
    if (!kept.empty()) {
      const auto such = std::count(kept.begin(), kept.end(), keep);
      return static_cast<double>(such) / static_cast<double>(kept.size());
    }
    return keep == keeps_all() ? 1 : 0;
  }
  /// Returns what every block keeps where it is not said block by block.
  Keep keeps_all() const {
    if (recomputes_all()) return Keep::kInput;
    return shoal() && training_.recompute == Recompute::kSelective ? Keep::kProducts
                                                                   : Keep::kEverything;
  }
  /// Returns the share of the blocks that repeat attention, and in Shoal their experts. Shoal does
  /// wherever a block does not keep everything.
  double repeats_blocks() const { return 1 - share_that_keeps(Keep::kEverything); }
  bool recomputes_all() const { return training_.recompute == Recompute::kFull; }
  double sequence_ranks() const {
    return training_.sequence_parallel ? static_cast<double>(degrees_.tp) : 1;
  }
  double tokens_to_route() const { return samples_ * length_ / sequence_ranks(); }
  /// Returns the experts that take a token in the mean: of evenly spread tokens, those of a
  /// sequence that fit into the capacity.
  double visits() const {
    const auto chosen = static_cast<double>(spec_.experts_per_token);
    if (spec_.capacity_factor == 0) return chosen;
    const double an_expert =
        chosen * static_cast<double>(training_.length(spec_)) / static_cast<double>(spec_.experts);
    const double capacity = std::max(1.0, std::ceil(spec_.capacity_factor * an_expert));
    return chosen * std::min(1.0, capacity / an_expert);
  }

  /// A pipeline of Shoal reduces the gradients of a stage once, when they are complete.
  double gradient_reductions() const {
    if (shoal() && degrees_.pp > 1) return 1;
    return training_.reduces_every_micro_batch() ? micro_batches_ : 1;
  }
  /// Returns how often each stage's parameters are gathered in a step.
  std::vector<double> gathers_by_stage() const {
    const auto stages = static_cast<std::size_t>(training_.stages());
    if (training_.zero_stage < 3) return std::vector<double>(stages, 1);
    if (!shoal() || degrees_.pp == 1) {
      const double passes = training_.reshard_after_forward ? 2 : 1;
      return std::vector<double>(stages, micro_batches_ * passes);
    }
    std::vector<double> gathers(stages, 0);
    const schedule::Schedule table = pipeline_table(training_);
    for (const auto& actions : table.table) {
      for (const schedule::Action& action : actions)
        if (action.kind == schedule::Kind::kGather) ++gathers[action.stage];
    }
    return gathers;
  }
  /// Returns the parameters that each pipeline rank gathers in a step, each as often as it does.
  std::vector<HeldParameters> gathered_by_rank() const {
    const std::vector<HeldParameters> stages = held_by_stage(spec_, training_);
    const std::vector<double> gathers = gathers_by_stage();
    std::vector<HeldParameters> ranks(held_.size());
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const double times = gathers[stage];
      ranks[rank_of_stage(training_, static_cast<std::int64_t>(stage))] +=
          {times * stages[stage].split, times * stages[stage].replicated,
           times * stages[stage].expert};
    }
    return ranks;
  }

  /// A flat ring passes everything on from host to host.
  double between_share_of_shards(const DataRanks& ranks) const {
    if (training_.flat_rings && ranks.shards.hosts > 1) return 1;
    return between_share(ranks.shards);
  }

  /// Returns what a rank sends of `bytes` that are gathered from the shards, or summed over them.
  Bytes over_shards(double bytes, const DataRanks& ranks) const {
    const double sent = exchanged_share(ranks.shards.ranks()) * bytes;
    return {sent, sent * between_share_of_shards(ranks)};
  }

  /// Parameters of a pipeline rank that lie on the same data ranks.
  struct Part {
    double held = 0;
    double gathered = 0;  ///< in a step, each as often as it is
  };
  /// Sums what a pipeline rank sends of each part of its parameters over the data ranks of that
  /// part; returns the sum of the rank that sends most.
  template <class BytesOf>
  Bytes most_of_a_rank(const BytesOf& bytes_of) const {
    Bytes most;
    for (std::size_t rank = 0; rank < held_.size(); ++rank) {
      const HeldParameters& held = held_[rank];
      const HeldParameters& gathered = gathered_[rank];
      const Bytes bytes = bytes_of(Part{held.split, gathered.split}, dense_) +
                          bytes_of(Part{held.replicated, gathered.replicated}, replicated_) +
                          bytes_of(Part{held.expert, gathered.expert}, experts_);
      if (bytes.all > most.all) most = bytes;
    }
    return most;
  }

  /// Messages that the busiest rank of a pipeline sends for each micro-batch.
  double messages_of_a_micro_batch() const {
    if (training_.table) return most_sends_of_a_rank(*training_.table) / micro_batches_;
    const auto chunks = static_cast<double>(training_.chunks());
    // A middle rank sends an activation forward and a gradient backward for each of its stages.
    if (degrees_.pp > 2) return 2 * chunks;
    // Of two ranks one sends no gradient from the first stage, and the other no activation from the
    // last. In a V one has both, and the other hands over between its stages without a message.
    const bool in_a_v = training_.schedule == "zb-v" || training_.schedule == "dualpipe-v";
    return in_a_v ? 2 : 2 * chunks - 1;
  }

  static double most_sends_of_a_rank(const schedule::Schedule& table) {
    std::ptrdiff_t most = 0;
    for (const auto& actions : table.table) {
      const auto sends = std::count_if(actions.begin(), actions.end(), [](const auto& action) {
        return schedule::is_send(action.kind);
      });
      most = std::max(most, sends);
    }
    return static_cast<double>(most);
  }

  /// Sums the blocks of each pipeline rank, a dense one as `dense` and one with experts as
  /// `mixture`; returns the largest sum.
  double most_blocks_of_a_rank(double dense, double mixture) const {
    return most_of_a_pipeline(
        [&](std::int64_t block) { return model::has_experts(spec_, block) ? mixture : dense; });
  }

  /// Sums over the blocks of each pipeline rank; returns the largest sum.
  template <class OfBlock>
  double most_of_a_pipeline(const OfBlock& of_block) const {
    const auto blocks = stage_blocks(spec_, training_);
    std::vector<double> on_rank(static_cast<std::size_t>(degrees_.pp));
    std::int64_t block = 0;
    for (std::int64_t stage = 0; stage < training_.stages(); ++stage) {
      double& sum = on_rank[rank_of_stage(training_, stage)];
      for (const std::int64_t end = block + blocks[stage]; block < end; ++block)
        sum += of_block(block);
    }
    return *std::max_element(on_rank.begin(), on_rank.end());
  }

  const ModelSpec& spec_;
  const Training& training_;
  const Cluster& cluster_;
  const Degrees& degrees_;
  Precision number_;
  double micro_batches_;
  std::vector<HeldParameters> held_;
  std::vector<HeldParameters> gathered_;
  DataRanks dense_;
  DataRanks replicated_;
  DataRanks experts_;
  double samples_ = 0;  ///< samples of a micro-batch
  double length_ = 0;   ///< tokens of a sample on one context rank
  double hidden_ = 0;
  double layers_ = 0;    ///< blocks of the pipeline rank that has most
  double mixtures_ = 0;  ///< blocks with experts of the one that has most of these
};

/// All techniques in the order in which they are reported.
struct Technique {
  const char* name;
  StepTraffic::Bytes (StepTraffic::*bytes)() const;
};
constexpr Technique kDataTechniques[] = {{"data", &StepTraffic::data},
                                         {"shard", &StepTraffic::shard},
                                         {"second shard", &StepTraffic::second_shard},
                                         {"replica", &StepTraffic::replica},
                                         {"members", &StepTraffic::members},
                                         {"offload", &StepTraffic::offload}};
constexpr Technique kModelTechniques[] = {
    {"tensor", &StepTraffic::tensor},     {"vocabulary", &StepTraffic::vocabulary},
    {"pipeline", &StepTraffic::pipeline}, {"context", &StepTraffic::context},
    {"expert", &StepTraffic::expert},     {"expert tensor", &StepTraffic::expert_tensor}};

}  // namespace

std::vector<Traffic> traffic(const ModelSpec& spec, const Training& training,
                             const Cluster& cluster) {
  const StepTraffic step(spec, training, cluster);
  std::vector<Traffic> all;
  const auto add = [&](const Technique& technique) {
    const StepTraffic::Bytes bytes = (step.*technique.bytes)();
    if (bytes.all > 0) all.push_back({technique.name, bytes.all, bytes.between});
  };
  for (const Technique& technique : kDataTechniques) add(technique);
  if (spec.family == Family::kMlp) return all;
  for (const Technique& technique : kModelTechniques) add(technique);
  return all;
}

}  // namespace shoal::plan
