#include "shoal/train/member_exchange.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "shoal/base/check.h"
#include "shoal/parallel/ownership.h"

namespace shoal::train {
namespace {

/// Cuts the parameters of a set evenly. A set that is too small for that is exchanged as one, with
/// the last fragment.
std::vector<std::vector<at::Tensor>> fragments_of(std::vector<at::Tensor> parameters,
                                                  std::int64_t values, int fragments,
                                                  std::int64_t block) {
  if ((values + block - 1) / block >= fragments)
    return optim::even_fragments(parameters, fragments, block);
  std::vector<std::vector<at::Tensor>> result(static_cast<std::size_t>(fragments));
  result.back() = std::move(parameters);
  return result;
}

}  // namespace

MemberExchange::MemberExchange(const nn::Model& model,
                               const std::vector<parallel::OwnedRange>& owned,
                               optim::Optimizer& optimizer, parallel::GradientReduction& reduction,
                               const mesh::Mesh& mesh, const parallel::TiedWeights* tied,
                               comm::Group members, const MemberExchangeOptions& options)
    : optimizer_(optimizer),
      reduction_(reduction),
      members_(std::move(members)),
      rank_(mesh.rank()),
      ranks_(mesh.size()) {
  for (Set& set : sets_of(model, owned, mesh, tied)) {
    optim::SynchronisationOptions own = options.synchronisation;
    // Other sets round with other random numbers; all owners of this one with the same.
    collective::Coding& coding = own.outer.coding;
    coding.key = coding.key.child(set.first);
    own.outer.alike = std::move(set.alike);
    sets_.emplace_back(
        fragments_of(std::move(set.parameters), set.values, options.fragments, coding.block),
        members_, own);
  }
}

std::vector<MemberExchange::Set> MemberExchange::sets_of(
    const nn::Model& model, const std::vector<parallel::OwnedRange>& owned, const mesh::Mesh& mesh,
    const parallel::TiedWeights* tied) {
  std::map<const nn::Parameter*, mesh::AxisSet> holders;
  for (const parallel::HeldParameters& held : parallel::by_holders(model.parameters(), mesh))
    for (const auto& parameter : held.parameters) holders[parameter.get()] = held.holders.axes;
  std::vector<Set> sets;
  std::map<std::pair<mesh::AxisSet, int>, std::size_t> known;
  for (const parallel::OwnedRange& range : owned) {
    if (!range.parameter->requires_grad()) continue;
    const auto [place, fresh] =
        known.try_emplace({holders.at(range.parameter.get()), range.ties}, sets.size());
    if (fresh) {
      Set& set = sets.emplace_back();
      set.first = range.parameter->name();
      // The copies of each stage first: then all stages take what the first one has.
      if (range.copies > 1) set.alike.push_back(mesh.along(holders.at(range.parameter.get())));
      if (range.ties > 1) set.alike.push_back(tied->holders(*range.parameter));
    }
    Set& set = sets[place->second];
    const at::Tensor& values = optimizer_.master(places_.size());
    SHOAL_USER_CHECK(values.defined(), "low_communication", "{} has no fp32 values",
                     range.parameter->name());
    set.parameters.push_back(values);
    places_.push_back({place->second, set.values, values.numel()});
    set.values += values.numel();
  }
  return sets;
}

void MemberExchange::after_step(std::int64_t step) {
  const bool writes = std::any_of(sets_.begin(), sets_.end(),
                                  [&](const auto& set) { return set.writes_after(step); });
  if (writes) reduction_.begin_update();
  for (optim::Synchronisation& set : sets_) set.after_step(step);
  if (!writes) return;
  optimizer_.copy_masters_to_parameters();
  reduction_.end_update();
}

void MemberExchange::swap_anchor() {
  reduction_.begin_update();
  for (const optim::Synchronisation& set : sets_) set.swap_anchors();
  optimizer_.copy_masters_to_parameters();
  reduction_.end_update();
}

void MemberExchange::take_anchor() {
  reduction_.begin_update();
  for (optim::Synchronisation& set : sets_) set.take_anchors();
  optimizer_.copy_masters_to_parameters();
  reduction_.end_update();
}

void MemberExchange::wait() {
  for (optim::Synchronisation& set : sets_) set.wait();
}

void MemberExchange::resume(std::int64_t step) {
  for (optim::Synchronisation& set : sets_) set.resume(step);
}

void MemberExchange::restart(std::int64_t step) {
  for (optim::Synchronisation& set : sets_) set.restart(step);
}

at::Tensor MemberExchange::of_slice(std::size_t slice, const at::Tensor& set) const {
  const Place& place = places_.at(slice);
  return set.defined() ? set.narrow(0, place.begin, place.count) : set;
}

at::Tensor MemberExchange::anchor_of(std::size_t slice) const {
  return of_slice(slice, sets_[places_.at(slice).set].anchors());
}

at::Tensor MemberExchange::momentum_of(std::size_t slice) const {
  return of_slice(slice, sets_[places_.at(slice).set].momentum());
}

at::Tensor MemberExchange::residual_of(std::size_t slice) const {
  return of_slice(slice, sets_[places_.at(slice).set].residual());
}

void MemberExchange::add_parts(std::vector<Part>& parts, std::size_t set, std::int64_t begin,
                               const at::Tensor& values) const {
  const std::int64_t end = begin + values.numel();
  for (std::size_t slice = 0; slice < places_.size(); ++slice) {
    const Place& place = places_[slice];
    if (place.set != set) continue;
    const std::int64_t first = std::max(begin, place.begin);
    const std::int64_t last = std::min(end, place.begin + place.count);
    if (first < last)
      parts.push_back({slice, first - place.begin, values.narrow(0, first - begin, last - first)});
  }
}

template <class ValuesOf>
std::vector<MemberExchange::Part> MemberExchange::parts_of_fragments(
    const ValuesOf& values_of) const {
  std::vector<Part> parts;
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    std::int64_t fragment_begin = 0;
    for (const optim::OuterOptimizer& fragment : sets_[s].fragments()) {
      const auto [begin, values] = values_of(fragment);
      if (values.defined()) add_parts(parts, s, fragment_begin + begin, values);
      fragment_begin += fragment.anchor().numel();
    }
  }
  return parts;
}

std::vector<MemberExchange::Part> MemberExchange::sums_in_flight() const {
  return parts_of_fragments([](const optim::OuterOptimizer& fragment) {
    return std::pair(std::int64_t{0}, fragment.in_flight() ? fragment.difference() : at::Tensor());
  });
}

std::vector<MemberExchange::Part> MemberExchange::sum_residuals() const {
  return parts_of_fragments([](const optim::OuterOptimizer& fragment) {
    return std::pair(fragment.sum_begin(), fragment.sum_residual());
  });
}

}  // namespace shoal::train
