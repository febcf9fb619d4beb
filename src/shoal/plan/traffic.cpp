#include "shoal/plan/traffic.h"

#include <algorithm>

#include "shoal/plan/memory.h"
#include "shoal/plan/topology.h"

namespace shoal::plan {
namespace {

double share(std::int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); }

/// What of an all-gather, a reduce-scatter or an all-reduce goes over the link between hosts: where
/// each host has several members, they share it, and the rest stays inside.
double between_share(const GroupShape& group) {
  if (group.hosts == 1) return 0;
  return group.inside == 1
             ? 1
             : share(group.hosts) / static_cast<double>(group.inside) / share(group.ranks());
}

/// The same of an all-to-all: what goes to members on other hosts.
double between_share_of_exchange(const GroupShape& group) {
  return group.hosts == 1 ? 0
                          : static_cast<double>(group.ranks() - group.inside) /
                                static_cast<double>(group.ranks() - 1);
}

}  // namespace

double data_elements(int zero, std::int64_t ranks, double parameters, std::int64_t micro_batches,
                     bool reshard_after_forward, bool every_micro_batch) {
  const double once = share(ranks) * parameters;
  const double times = every_micro_batch ? static_cast<double>(micro_batches) : 1;
  if (zero == 0) return times * 2 * once;
  if (zero == 1) return (times + 1) * once;
  if (zero == 2) return micro_batches * once + once;
  return micro_batches * (reshard_after_forward ? 3 : 2) * once;
}

double tensor_elements(std::int64_t ranks, double samples, double length, double hidden,
                       bool recomputed) {
  return (recomputed ? 12 : 8) * samples * length * hidden * share(ranks);
}

double expert_elements(std::int64_t ranks, double tokens, double visits, double hidden) {
  return 4 * tokens * visits * hidden * share(ranks);
}

double expert_bytes(const Precision& number, bool recomputed) {
  const double forward = number.dispatch_bytes + number.activation_bytes;
  const double backward = 2 * number.activation_bytes;
  return ((recomputed ? 2 : 1) * forward + backward) / 4;
}

double context_elements(std::int64_t ranks, double samples, double length, double kv_width) {
  // Gathered: ranks x length rows of keys and of values; each rank sends its own to ranks - 1
  // others.
  return 3 * 2 * samples * (length * ranks) * kv_width * share(ranks);
}

double ulysses_elements(std::int64_t ranks, double samples, double length, double query_width,
                        double kv_width) {
  return 2 * samples * length * (2 * query_width + 2 * kv_width) * share(ranks);
}

ZeroPlusPlusBytes zero_plus_plus_bytes(std::int64_t ranks, std::int64_t inside) {
  // 8 bits forward, 4 bits of gradient; 16 bits for the backward pass.
  return {share(ranks) * (1 + 0.5), share(inside) * 2};
}

std::vector<Traffic> traffic(const ModelSpec& spec, const Training& training,
                             const Cluster& cluster) {
  const Mesh& mesh = training.mesh;
  const Precision number = *precision(training.precision, training.optimizer);
  const double e = number.activation_bytes;
  const std::int64_t m = training.micro_batches();
  std::vector<Traffic> all;
  const auto add = [&](const char* technique, double bytes, double between) {
    if (bytes > 0) all.push_back({technique, bytes, bytes * between});
  };

  // Of the rank that sends most: dense parameters to all data ranks, experts to those that hold the
  // same ones.
  const DataRanks dense = dense_ranks(cluster, training);
  const DataRanks expert = expert_ranks(cluster, training);
  const auto held = held_by_rank(spec, training);
  const auto most = [&](auto&& of_group) {
    double bytes = 0;
    for (const HeldParameters& rank : held)
      bytes = std::max(bytes, of_group(rank.dense(), dense) + of_group(rank.expert, expert));
    return bytes;
  };
  const double p = number.state.parameter;
  const double g = number.state.gradient;
  // A flat ring passes everything on from host to host.
  const double between =
      training.flat_rings && dense.shards.hosts > 1 ? 1 : between_share(dense.shards);
  const double times =
      training.zero >= 2 || training.sync_every_micro_batch ? static_cast<double>(m) : 1;
  const auto replicas = [&](double parameters, const DataRanks& ranks) {
    return 2 * share(ranks.replicas.ranks()) * parameters /
           static_cast<double>(ranks.shards.ranks()) * g;
  };
  if (training.zero == 0) {
    add("data", most([&](double parameters, const DataRanks& ranks) {
          return times * 2 * share(ranks.shards.ranks()) * parameters * g;
        }),
        between);
  } else if (training.zero_plus_plus) {
    const auto bytes = [&](const DataRanks& ranks) {
      return zero_plus_plus_bytes(ranks.shards.ranks(), ranks.shards.inside);
    };
    const double again = training.reshard_after_forward ? 1 : 0;
    add("shard", most([&](double parameters, const DataRanks& ranks) {
          return m * parameters * bytes(ranks).shards;
        }),
        between);
    add("second shard", most([&](double parameters, const DataRanks& ranks) {
          return m * parameters * again * bytes(ranks).inside;
        }),
        0);
    add("replica", most(replicas), between_share(dense.replicas));
  } else {
    const double gathers =
        training.zero == 3 ? m * (training.reshard_after_forward ? 2.0 : 1.0) : 1;
    const double sent = times * g + gathers * p;
    add("shard", most([&](double parameters, const DataRanks& ranks) {
          return share(ranks.shards.ranks()) * parameters * sent;
        }),
        between);
    add("replica", most(replicas), between_share(dense.replicas));
  }
  if (training.offload_optimizer) {
    // Over the link to the host's memory: gradients there, parameters back; where these stay there,
    // their shard again for every gather.
    const double fetched =
        training.offload_parameters ? m * (training.reshard_after_forward ? 2.0 : 1.0) : 1;
    const double moved = g + fetched * p;
    add("offload", most([&](double parameters, const DataRanks& ranks) {
          return parameters / (training.zero >= 1 ? static_cast<double>(ranks.shards.ranks()) : 1) *
                 moved;
        }),
        0);
  }
  if (spec.family == Family::kMlp) return all;

  const double b = training.micro_batch;
  const double s = static_cast<double>(training.length(spec)) / mesh.context;
  const double h = spec.hidden;
  const auto blocks = stage_blocks(spec, training);
  std::vector<double> on_rank(mesh.pipeline);
  for (std::int64_t stage = 0; stage < training.stages(); ++stage)
    on_rank[rank_of_stage(training, stage)] += blocks[stage];
  const double layers = *std::max_element(on_rank.begin(), on_rank.end());
  const bool full = training.recompute == Recompute::kFull;
  // Sequence parallelism gathers the inputs of two products once more in the backward pass.
  const double regathered = training.sequence_parallel ? 2 * b * s * h * share(mesh.tensor) : 0;
  // Of a mixture attention alone: its experts' tensor ranks are counted below.
  const double products = spec.experts > 0 ? 0.5 : 1;
  add("tensor",
      e * m * layers * products * (tensor_elements(mesh.tensor, b, s, h, full) + regathered),
      between_share(tensor_group(cluster, mesh)));
  add("vocabulary", share(mesh.tensor) * m * (e * 4 * b * s * h + 4 * 3 * 2 * b * s),
      between_share(tensor_group(cluster, mesh)));
  if (mesh.pipeline > 1) {
    const double message = e * b * s * h / (training.sequence_parallel ? mesh.tensor : 1);
    add("pipeline", 2 * m * training.chunks() * message,
        pipeline_crosses_hosts(cluster, mesh) ? 1 : 0);
  }
  const double kv = static_cast<double>(spec.kv_heads) * spec.head_size / mesh.tensor;
  const double queries = static_cast<double>(spec.heads) * spec.head_size / mesh.tensor;
  add("context",
      e * m * layers *
          (training.ulysses ? (full ? 1.5 : 1) * ulysses_elements(mesh.context, b, s, queries, kv)
                            : context_elements(mesh.context, b, s, kv)),
      training.ulysses ? between_share_of_exchange(context_group(cluster, mesh))
                       : between_share(context_group(cluster, mesh)));
  if (spec.experts > 0) {
    const double local = b * s / (training.sequence_parallel ? mesh.tensor : 1);
    add("expert",
        expert_bytes(number, full) * m * layers *
            expert_elements(mesh.expert, local, spec.experts_per_token, h),
        between_share_of_exchange(expert_group(cluster, mesh)));
    // An expert's tensor ranks gather the rows of all of them and scatter the sums of their
    // results.
    const double rows = local * spec.experts_per_token * expert_copies(training);
    add("expert tensor", e * m * layers * (full ? 6 : 4) * rows * h * share(mesh.expert_tensor),
        between_share(expert_tensor_group(cluster, mesh)));
  }
  return all;
}

double traffic_bytes(const std::vector<Traffic>& all, const std::string& technique) {
  for (const Traffic& one : all)
    if (one.technique == technique) return one.bytes;
  return 0;
}

double traffic_between_bytes(const std::vector<Traffic>& all, const std::string& technique) {
  for (const Traffic& one : all)
    if (one.technique == technique) return one.between_bytes;
  return 0;
}

}  // namespace shoal::plan
