#include "shoal/forecast/rank_states.h"

#include <algorithm>

#include "shoal/plan/topology.h"

namespace shoal::forecast {
namespace {

using plan::HeldParameters;

double divided(const HeldParameters& held, const HeldParameters& by) {
  return held.split / by.split + held.replicated / by.replicated + held.expert / by.expert;
}

/// Returns how many of `ranks` ranks, `stride` apart, read one copy: all on one host, or those of
/// each host where hosts hold equal blocks of them.
double readers_of(const Cluster& cluster, std::int64_t ranks, std::int64_t stride) {
  const std::int64_t inside = plan::group_shape(cluster, ranks, stride).inside;
  return ranks % inside == 0 ? static_cast<double>(inside) : 1;
}

}  // namespace

StateBytes states_of(const Training& training) {
  return training.states ? *training.states
                         : plan::precision(training.precision, training.optimizer)->state;
}

StateShares::StateShares(const Training& training, const Cluster& cluster) {
  const Degrees degrees = training.reducing();
  const bool divided_experts = degrees.ep > 1;
  const std::int64_t shards = degrees.shard_ranks();
  // No matrix of an expert is cut along tp: undivided experts lie as vectors do.
  const std::int64_t experts = divided_experts ? training.expert_data() : shards * degrees.tp;
  const std::int64_t copies = degrees.dp() * degrees.cp;
  copies_ = {static_cast<double>(copies), static_cast<double>(copies * degrees.tp),
             static_cast<double>(divided_experts ? experts : copies * degrees.tp)};
  shared_ = shards <= cluster.devices_per_host;
  if (training.zero_stage == 0) return;
  cut_ = {static_cast<double>(shards), static_cast<double>(shards * degrees.tp),
          static_cast<double>(experts)};
  readers_ = {readers_of(cluster, shards, degrees.tp), readers_of(cluster, shards * degrees.tp, 1),
              readers_of(cluster, experts, divided_experts ? degrees.ep : 1)};
}

double StateShares::owned(const HeldParameters& held) const { return divided(held, cut_); }
double StateShares::read(const HeldParameters& held) const { return divided(held, readers_); }
double StateShares::saved(const HeldParameters& held) const { return divided(held, copies_); }

RankStates::RankStates(const Training& training, const Cluster& cluster, const HeldParameters& held)
    : training_(training), bytes_(states_of(training)), shares_(training, cluster), held_(held) {}

MemoryUse RankStates::with_gradients(double bytes) const {
  MemoryUse use;
  // Stage 3 keeps a shard; stages 1 and 2 keep whole parameters, once a host where ranks can share
  // them.
  use.parameters =
      bytes_.parameter * (training_.zero_stage == 3 ? shares_.owned(held_) : shares_.read(held_));
  use.optimizer = training_.offload_optimizer ? 0 : shares_.owned(held_) * bytes_.optimizer();
  const double outer = training_.exchange ? training_.exchange->state_bytes : 0;
  use.optimizer += shares_.owned(held_) * outer;
  if (training_.exchange && training_.exchange->overlapped) use.communication = in_flight();
  use.gradients = bytes;
  // A checkpoint has parameters, or their masters, and moments; each member its own.
  const double masters = bytes_.master > 0 ? bytes_.master : bytes_.parameter;
  use.staging =
      std::min(training_.staging_bytes, shares_.saved(held_) * (masters + bytes_.moments + outer));
  return use;
}

double RankStates::in_flight() const {
  return training_.exchange ? shares_.owned(held_) * training_.exchange->flight_bytes : 0;
}

MemoryUse RankStates::at_update() const {
  MemoryUse use = with_gradients(last_gradients());
  // Members that wait for their exchange do so behind the update.
  use.communication = in_flight();
  return use;
}

}  // namespace shoal::forecast
