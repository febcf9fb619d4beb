#include "shoal/parallel/shard/unit_gradients.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"

namespace shoal::parallel {

UnitGradients::UnitGradients(std::vector<const FlatUnit*> units, const comm::Group& all,
                             comm::Group shard, comm::Group replicate, Options options)
    : units_(std::move(units)),
      control_(all.split(0, all.rank())),
      shard_(std::move(shard)),
      replicate_(std::move(replicate)),
      options_(options),
      states_(units_.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    first_.push_back(places_.size());
    if (!units_[u]->trained) continue;
    order_.insert(order_.begin(), u);
    for (std::size_t m = 0; m < units_[u]->members.size(); ++m) {
      nn::Parameter& parameter = *units_[u]->members[m].parameter;
      parameter.on_sink_wanted([this, u] { make_flat(u); });
      parameter.on_gradient_ready(
          [this, i = places_.size(), alive = std::weak_ptr(alive_)](nn::Parameter&) {
            if (!alive.expired()) ready(i);
          });
      places_.push_back({u, m});
    }
  }
}

UnitGradients::~UnitGradients() {
  // The model may outlive this object: its parameters must not ask for buffers of it.
  for (const Place& place : places_) {
    member(place).parameter->on_sink_wanted(nullptr);
    member(place).parameter->set_sink({});
  }
}

void UnitGradients::clear() {
  for (State& state : states_) {
    state.sum = at::Tensor();
    state.arrived = 0;
  }
  for (Place& place : places_) {
    place.arrived = false;
    place.used = false;
  }
  sent_ = 0;
}

void UnitGradients::set_sending(bool sending) { sending_ = sending; }

/// Blocks until no more buffers are in flight than are allowed.
void UnitGradients::wait_for_room() {
  std::vector<Flight*> waiting;
  // Backward may run ahead of the network; without this limit every unit's whole gradient would be
  // in memory at once. Peers read these buffers when they reach the same unit.
  for (Flight& flight : flights_)
    if (!flight.on_replicas && !flight.work.test()) waiting.push_back(&flight);
  for (std::size_t i = 0; i + static_cast<std::size_t>(options_.in_flight) < waiting.size(); ++i)
    waiting[i]->work.order();
  shard_.poll();  // frees buffers that every rank has read
}

// Padding stays uninitialised: nobody reads its sum.
void UnitGradients::make_flat(std::size_t u) {
  const FlatUnit& unit = *units_[u];
  const ScopedCategory category(MemoryCategory::kGradients);
  states_[u].flat = at::empty({unit.size()}, unit.gradient_options());
  for (const FlatUnit::Member& member : unit.members) {
    member.parameter->set_sink(states_[u]
                                   .flat.narrow(0, member.offset, member.count)
                                   .view(member.parameter->tensor().sizes()));
  }
}

void UnitGradients::ready(std::size_t i) {
  Place& place = places_[i];
  if (!sending_ || place.arrived || !member(place).parameter->gradient().defined()) return;
  place.arrived = true;
  ++states_[place.unit].arrived;
  for (; sent_ < order_.size() &&
         states_[order_[sent_]].arrived == units_[order_[sent_]]->members.size();
       ++sent_)
    send(order_[sent_]);
  shard_.poll();
  start_replica_sums(false);
  collect_sums(false);
}

void UnitGradients::send(std::size_t u) {
  const FlatUnit& unit = *units_[u];
  State& state = states_[u];
  if (!state.flat.defined()) make_flat(u);
  for (std::size_t m = 0; m < unit.members.size(); ++m) {
    const FlatUnit::Member& member = unit.members[m];
    // A parameter that this rank does not use counts as zero for the ranks that do. One that nobody
    // uses is never read, but stale memory could hold an overflow.
    if (!member.parameter->gradient().defined())
      state.flat.narrow(0, member.offset, member.count).zero_();
    places_[first_[u] + m].arrived = true;
  }
  Flight flight{.unit = u, .sum = {}, .work = {}};
  if (shard_.size() == 1) {
    flight.sum = state.flat;
  } else {
    const ScopedCategory category(MemoryCategory::kGradients);
    flight.sum = options_.in_place ? state.flat.narrow(0, shard_.rank() * unit.shard, unit.shard)
                                   : at::empty({unit.shard}, unit.gradient_options());
    flight.work = shard_.reduce_scatter(flight.sum, state.flat, {.async = true});
  }
  flights_.push_back(std::move(flight));
  if (options_.keep_whole) return;
  // The operation holds the buffer until every rank has read it.
  for (const FlatUnit::Member& member : unit.members) member.parameter->set_sink({});
  state.flat = at::Tensor();
  if (options_.in_flight > 0) wait_for_room();
}

/// Starts the all-reduce over the replicas of every sum that is complete over the shards, in the
/// order of sending: every rank must start them in one order. `wait`: for all that are in flight.
void UnitGradients::start_replica_sums(bool wait) {
  if (replicate_.size() == 1) return;
  for (Flight& flight : flights_) {
    if (flight.on_replicas) continue;
    if (wait) flight.work.order();
    if (!wait && !flight.work.test()) return;
    flight.work = replicate_.all_reduce(flight.sum, {.async = true});
    flight.on_replicas = true;
  }
  replicate_.poll();
}

/// Adds what has arrived to the sums, in the order of sending, so that no second set of sums builds
/// up. `wait`: for all that is in flight.
void UnitGradients::collect_sums(bool wait) {
  auto flight = flights_.begin();
  for (; flight != flights_.end(); ++flight) {
    if (replicate_.size() > 1 && !flight->on_replicas) break;
    if (wait) flight->work.order();
    if (!wait && !flight->work.test()) break;
    at::Tensor& sum = states_[flight->unit].sum;
    if (sum.defined()) {
      sum.add_(flight->sum);
    } else {
      sum = flight->sum;
    }
  }
  flights_.erase(flights_.begin(), flight);
}

std::vector<bool> UnitGradients::used_here() const {
  std::vector<bool> used;
  for (const Place& place : places_)
    used.push_back(place.arrived || member(place).parameter->gradient().defined());
  return used;
}

std::vector<bool> UnitGradients::agree_on_used(const std::vector<bool>& here) const {
  const at::Tensor map = at::empty({static_cast<std::int64_t>(places_.size())}, at::kByte);
  auto* used = map.data_ptr<std::uint8_t>();
  std::copy(here.begin(), here.end(), used);
  control_.all_reduce(map, {.reduction = comm::Reduction::kMax});
  return std::vector<bool>(used, used + places_.size());
}

void UnitGradients::complete() {
  const std::vector<bool> here = used_here();
  for (; sent_ < order_.size(); ++sent_) send(order_[sent_]);
  // The order of the two is that of `ready`: sums over the shards first, then over the replicas.
  start_replica_sums(true);
  collect_sums(true);
  // The map is exchanged last. A peer may still wait for room in the middle of its backward pass,
  // and needs this rank's part in the reductions above, not in another operation.
  const std::vector<bool> used = agree_on_used(here);
  // Every rank has its sums, so the operations' memory can be freed now instead of when the next
  // backward pass polls.
  shard_.poll();
  replicate_.poll();
  sent_ = 0;
  for (State& state : states_) state.arrived = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    places_[i].arrived = false;
    places_[i].used = places_[i].used || used[i];
  }
}

at::Tensor UnitGradients::sum(const nn::Parameter& parameter) const {
  for (const Place& place : places_) {
    if (member(place).parameter.get() != &parameter) continue;
    if (!place.used) return {};
    const FlatUnit& unit = *units_[place.unit];
    const auto [begin, end] = unit.range(member(place), shard_.rank());
    return states_[place.unit].sum.narrow(0, unit.place(member(place), shard_.rank()), end - begin);
  }
  SHOAL_CHECK(false, "{} is in no unit", parameter.name());
  return {};
}

}  // namespace shoal::parallel
