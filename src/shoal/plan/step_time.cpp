#include "shoal/plan/step_time.h"

#include <algorithm>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/topology.h"

namespace shoal::plan {
namespace {

// Shares by which a collective slows the computation that it runs beside: its kernels occupy part
// of the device inside a host, and hardly any of it between hosts. Isaev et al., "Calculon", SC
// 2023.
constexpr double kInterferenceInside = 0.15;
constexpr double kInterferenceBetween = 0.02;

/// Returns the time of one message between neighbouring stages: each tensor rank sends its share,
/// and the receivers gather the shares unless activations stay cut.
double message_s(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  const Degrees& degrees = training.degrees;
  // The activations of one micro-batch, [b, s / c, h].
  const double bytes = precision(training.precision)->activation_bytes * training.micro_batch *
                       training.length(spec) / degrees.cp * spec.hidden;
  const AlphaBeta link =
      pipeline_crosses_hosts(cluster, degrees) ? between_link(cluster) : inside_link(cluster);
  const double gather =
      training.sequence_parallel ? 0 : all_gather_s(cluster, tensor_group(cluster, degrees), bytes);
  return link.alpha + bytes / degrees.tp * link.beta + gather;
}

/// Returns the totals of every pipeline rank for one micro-batch.
std::vector<PieceTime> by_rank(const std::vector<PieceTime>& stages, const Training& training) {
  std::vector<PieceTime> ranks(training.degrees.pp);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    ranks[rank_of_stage(training, static_cast<std::int64_t>(stage))] += stages[stage];
  return ranks;
}

/// Returns the time of GPipe, 1F1B and interleaved in closed form: the slowest rank runs all
/// micro-batches, and the other ranks' share of the first one passes before and after. The form is
/// exact for equal stages.
double closed_form_s(const std::vector<PieceTime>& ranks, double m, double v) {
  double sum = 0;
  double longest = 0;
  for (const PieceTime& rank : ranks) {
    sum += rank.all();
    longest = std::max(longest, rank.all());
  }
  // Narayanan et al., SC 2021, section 2.2: for equal ranks m t + (p - 1) t / v.
  return m * longest + (sum - longest) / v;
}

double closed_pipeline_s(const std::vector<PieceTime>& ranks, const Training& training) {
  const double m = training.micro_batches();
  const double v = training.virtual_stages;
  // One after the other, whatever their stages cost.
  if (training.schedule == "in_turn") return m * closed_form_s(ranks, 1, 1);
  return ranks.size() == 1 ? m * ranks[0].all() : closed_form_s(ranks, m, v);
}

double simulated_pipeline_s(const std::vector<PieceTime>& stages, const Training& training,
                            ScheduleCache& cache) {
  if (training.table) {
    return schedule::simulate(*training.table, schedule_costs(stages), [](int, const auto&) {})
        .longest_span();
  }
  return cache.longest_span(training.schedule, static_cast<int>(training.degrees.pp),
                            static_cast<int>(training.chunks()),
                            static_cast<int>(training.micro_batches()), schedule_costs(stages));
}

double host_link(const Cluster& cluster) {
  SHOAL_USER_CHECK(cluster.host.described(), "plan",
                   "offload: cluster {} does not describe its hosts' memory (host.memory_bytes, "
                   "host.memory_bandwidth, host.link_bandwidth)",
                   cluster.name);
  return cluster.host.link_bandwidth;
}

struct Exchange {
  double seconds = 0;  ///< hidden or not
  double window = 0;   ///< computation beside which it can run
  double interference = 0;
};

/// Returns the micro-batches whose computation can hide each direction of an exchange. A stage's
/// gradients are complete after its last backward pass. An interleaved schedule runs the last `pp`
/// micro-batches backward stage after stage, so that the exchange of the first stage to finish has
/// the time of all others. Parameters that are gathered for the forward pass behave alike.
double overlapping_micro_batches(const Training& training) {
  const double p = training.degrees.pp;
  const double v = training.virtual_stages;
  const double m = training.micro_batches();
  return p > 1 && v > 1 ? std::min(m, (p * (v - 1) + 1) / v) : 1;
}

/// Returns the seconds to exchange the gradients of `held` parameters among their data ranks, and
/// the parameters where they are sharded.
double exchange_s(double held, const DataRanks& ranks, const Training& training,
                  const Cluster& cluster) {
  if (held == 0) return 0;
  const StateBytes bytes = precision(training.precision, training.optimizer)->state;
  // A reduce-scatter takes as long as an all-gather of the same bytes.
  const auto over_shards = [&](double size) {
    return training.flat_rings ? flat_all_gather_s(cluster, ranks.shards, size)
                               : all_gather_s(cluster, ranks.shards, size);
  };
  const double m = training.micro_batches();
  // Gradients travel so often; the gathers of the parameters are counted below.
  const double times = training.reduces_every_micro_batch() ? m : 1;
  if (training.zero_stage == 0) {
    return times * (training.flat_rings
                        ? 2 * over_shards(held * bytes.gradient)
                        : all_reduce_s(cluster, ranks.shards, held * bytes.gradient));
  }
  const double shards = static_cast<double>(ranks.shards.ranks());
  const bool plus = training.zero_plus_plus;
  // ZeRO++: gradients of 4 bits, parameters of 8 bits.
  const double scatter = over_shards(held * (plus ? 0.5 : bytes.gradient));
  const double gather = over_shards(held * (plus ? 1 : bytes.parameter));
  const double again = training.reshard_after_forward ? m : 0;
  double gathers = 1;
  if (training.zero_stage == 3) gathers = plus ? m : m + again;
  double seconds = times * scatter + gathers * gather +
                   all_reduce_s(cluster, ranks.replicas, held / shards * bytes.gradient);
  if (plus)
    seconds += again * all_gather_s(cluster, {ranks.shards.inside, 1}, held * bytes.parameter);
  // Each rank's shard crosses the link to the host before it is gathered.
  if (training.offload_parameters)
    seconds += (m + again) * held / shards * bytes.parameter / host_link(cluster);
  return seconds;
}

/// Returns the exchange of the rank that has most to exchange: dense parameters among all data
/// ranks, experts among those that hold the same ones.
Exchange data_exchange(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                       const std::vector<PieceTime>& ranks) {
  const DataRanks dense = dense_ranks(cluster, training);
  const DataRanks expert = expert_ranks(cluster, training);
  Exchange exchange;
  for (const HeldParameters& held : held_by_rank(spec, training)) {
    exchange.seconds =
        std::max(exchange.seconds, exchange_s(held.dense(), dense, training, cluster) +
                                       exchange_s(held.expert, expert, training, cluster));
  }
  // What can hide the exchange is the computation of the rank that has most of it.
  double forward = 0;
  double backward = 0;
  for (const PieceTime& rank : ranks) {
    forward = std::max(forward, rank.forward);
    backward = std::max(backward, rank.input_gradient + rank.weight_gradient);
  }
  const double m = training.micro_batches();
  const double overlapping = overlapping_micro_batches(training);
  // Stage 3 exchanges beside all computation, stage 2 beside every backward pass. Otherwise only
  // the last backward pass, whose gradients are final, can hide the exchange. Stages 1 and 2 also
  // have the forward pass that follows, for which parameters are gathered.
  if (training.zero_stage == 3) {
    exchange.window = m * (forward + backward);
  } else if (training.reduces_every_micro_batch()) {
    exchange.window = m * backward + (training.zero_stage >= 1 ? forward : 0);
  } else {
    exchange.window = overlapping * (backward + (training.zero_stage >= 1 ? forward : 0));
  }
  exchange.interference = dense.shards.hosts > 1 ? kInterferenceBetween : kInterferenceInside;
  return exchange;
}

/// Returns the parameters that the rank with most of them updates, which all wait for.
double most_owned(const ModelSpec& spec, const Training& training) {
  double most = 0;
  for (const HeldParameters& held : held_by_rank(spec, training))
    most = std::max(most, owned_values(held, training));
  return most;
}

/// Returns the seconds of a mean step in which members wait for their exchange, which comes behind
/// the update: no computation hides it.
double member_exchange_s(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  if (!training.exchange || training.exchange->overlapped) return 0;
  const double bytes = most_owned(spec, training) * training.exchange->sent_bytes;
  return all_reduce_s(cluster, replica_group(cluster, training.degrees), bytes) /
         static_cast<double>(training.exchange->every);
}

double optimizer_s(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  const double held = most_owned(spec, training);
  const double bytes = held * optimizer_bytes(training);
  if (!training.offload_optimizer) return memory_s(cluster, bytes);
  const StateBytes state = precision(training.precision, training.optimizer)->state;
  // Gradients go to the host and parameters come back over each device's own link; the update then
  // runs at the host's memory bandwidth, which its devices share.
  const double moved = held *
                       (state.gradient + (training.offload_parameters ? 0 : state.parameter)) /
                       host_link(cluster);
  return moved +
         bytes / (cluster.host.memory_bandwidth / static_cast<double>(cluster.devices_per_host));
}

}  // namespace

double step_span(const Training& training, const schedule::Timeline& timeline) {
  return training.post_validates() ? timeline.longest_span() : timeline.makespan();
}

std::vector<PieceTime> stage_times(const ModelSpec& spec, const Training& training,
                                   const Cluster& cluster) {
  const PieceTime block = block_time(spec, training, cluster);
  const std::int64_t stages = training.stages();
  if (spec.family == Family::kMlp) return {head_time(spec, training, cluster)};
  const auto blocks = stage_blocks(spec, training);
  const double message = training.degrees.pp > 1 && !training.overlap_pipeline
                             ? message_s(spec, training, cluster)
                             : 0;
  std::vector<PieceTime> times;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    PieceTime time = block * static_cast<double>(blocks[stage]);
    if (stage == 0) time += embedding_time(spec, training, cluster);
    if (stage == stages - 1) time += head_time(spec, training, cluster);
    // A message in the forward pass and one in the backward pass; both count as communication.
    time += {message, message, 0, 0, 2 * message};
    times.push_back(time);
  }
  return times;
}

schedule::Costs schedule_costs(const std::vector<PieceTime>& stages) {
  schedule::Costs costs;
  for (const PieceTime& stage : stages)
    costs.stages.push_back({stage.forward, stage.input_gradient, stage.weight_gradient, 1, 0});
  return costs;
}

StepTime published_step_time(const ModelSpec& spec, const Training& training,
                             const Cluster& cluster, ScheduleCache& cache, double cutoff_s) {
  const auto stages = stage_times(spec, training, cluster);
  const auto ranks = by_rank(stages, training);
  const double m = training.micro_batches();
  // The slowest rank sets the pace; what it does is what the parts of the step report.
  const auto busiest = std::max_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.all() < b.all(); });
  // The bubble is what the mean rank idles: the pipeline's time less its own work.
  double mean = 0;
  for (const PieceTime& rank : ranks) mean += rank.all() / static_cast<double>(ranks.size());
  StepTime time;
  // Without a closed form, first a bound that no schedule beats: if that passes the cutoff, the
  // simulation is spared.
  time.pipeline =
      has_closed_form(training) ? closed_pipeline_s(ranks, training) : m * busiest->all();
  time.communication = m * busiest->communication;
  time.recomputed = m * busiest->recomputed;
  const Exchange exchange = data_exchange(spec, training, cluster, ranks);
  time.data_hidden = training.overlap_data ? std::min(exchange.seconds, exchange.window) : 0;
  // Computation that runs beside a collective is slowed by it: that part of what is hidden shows.
  time.data_exposed =
      exchange.seconds - time.data_hidden + exchange.interference * time.data_hidden;
  time.data_exposed += member_exchange_s(spec, training, cluster);
  if (spec.tied_embeddings && training.degrees.pp > 1) {
    // The two copies of the token table add their gradients.
    const double table = static_cast<double>(spec.vocab) * spec.hidden / training.degrees.tp;
    const AlphaBeta link = pipeline_crosses_hosts(cluster, training.degrees) ? between_link(cluster)
                                                                             : inside_link(cluster);
    time.data_exposed +=
        ring_all_reduce_s(2, table * precision(training.precision)->state.gradient, link);
  }
  time.optimizer = optimizer_s(spec, training, cluster);
  if (!has_closed_form(training) && time.all() < cutoff_s)
    time.pipeline = simulated_pipeline_s(stages, training, cache);
  time.bubble = std::max(0.0, time.pipeline - m * mean);
  return time;
}

}  // namespace shoal::plan
