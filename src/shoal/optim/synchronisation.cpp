#include "shoal/optim/synchronisation.h"

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/optim/require.h"

namespace shoal::optim {
namespace {

void check_options(const SynchronisationOptions& options, std::int64_t fragments) {
  const auto every = static_cast<double>(options.every);
  require(options.every >= 1, "synchronisation", "every", every, "must be at least 1");
  require(fragments >= 1 && fragments <= options.every, "synchronisation", "fragments",
          static_cast<double>(fragments), "must lie between 1 and `every`");
  require(options.delay >= 0 && options.delay <= options.every / fragments, "synchronisation",
          "delay", static_cast<double>(options.delay),
          "must lie between 0 and `every` / fragments: one exchange at a time is in flight");
  require(options.mix >= 0 && options.mix < 1, "synchronisation", "mix", options.mix,
          "must lie in [0, 1)");
}

}  // namespace

std::int64_t first_exchange(std::int64_t every, int fragments, int fragment) {
  return (fragment + 1) * every / fragments;
}

std::vector<std::vector<at::Tensor>> even_fragments(const std::vector<at::Tensor>& parameters,
                                                    int fragments, std::int64_t multiple) {
  SHOAL_USER_CHECK(fragments >= 1 && multiple >= 1, "even_fragments",
                   "{} fragments at multiples of {}", fragments, multiple);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters) {
    SHOAL_USER_CHECK(parameter.is_contiguous(), "even_fragments", "parameters are contiguous");
    count += parameter.numel();
  }
  const std::int64_t blocks = (count + multiple - 1) / multiple;
  SHOAL_USER_CHECK(blocks >= fragments, "even_fragments",
                   "{} values in pieces of {} make fewer than {} fragments", count, multiple,
                   fragments);
  std::vector<std::vector<at::Tensor>> result(static_cast<std::size_t>(fragments));
  for (int f = 0; f < fragments; ++f) {
    const std::int64_t begin = blocks * f / fragments * multiple;
    const std::int64_t end = blocks * (f + 1) / fragments * multiple;
    std::int64_t offset = 0;
    for (const at::Tensor& parameter : parameters) {
      const std::int64_t first = std::max<std::int64_t>(begin - offset, 0);
      const std::int64_t last = std::min(end - offset, parameter.numel());
      if (first < last) {
        result[static_cast<std::size_t>(f)].push_back(
            parameter.detach().view({-1}).narrow(0, first, last - first));
      }
      offset += parameter.numel();
    }
  }
  return result;
}

Synchronisation::Synchronisation(std::vector<std::vector<at::Tensor>> fragments,
                                 const comm::Group& members, const SynchronisationOptions& options)
    : options_(options) {
  check_options(options, static_cast<std::int64_t>(fragments.size()));
  for (std::vector<at::Tensor>& parameters : fragments)
    fragments_.emplace_back(std::move(parameters), members, options.outer);
}

OuterOptimizer* Synchronisation::beginning_at(std::int64_t step) {
  if (step < 1) return nullptr;
  const std::int64_t in_round = (step - 1) % options_.every + 1;
  const int count = static_cast<int>(fragments_.size());
  for (int f = 0; f < count; ++f) {
    if (first_exchange(options_.every, count, f) == in_round)
      return &fragments_[static_cast<std::size_t>(f)];
  }
  return nullptr;
}

// The one in flight ends first, so that there are never two.
std::optional<Synchronisation::Exchange> Synchronisation::after_step(std::int64_t step) {
  std::optional<Exchange> taken;
  OuterOptimizer* const due = beginning_at(step - options_.delay);
  OuterOptimizer* const next = beginning_at(step);
  if (due && options_.delay > 0) taken = finish(*due);
  if (next) next->begin(step);
  if (due && options_.delay == 0) taken = finish(*due);
  // What is in flight moves while nobody waits for it.
  fragments_.front().poll();
  return taken;
}

Synchronisation::Exchange Synchronisation::finish(OuterOptimizer& fragment) {
  const double norm = fragment.finish(options_.mix);
  return {static_cast<int>(&fragment - fragments_.data()), norm};
}

void Synchronisation::wait() {
  for (OuterOptimizer& fragment : fragments_)
    if (fragment.in_flight()) fragment.wait();
}

void Synchronisation::resume(std::int64_t step) {
  // Begun after one of the last `delay` steps, and not finished in `step` itself.
  for (std::int64_t begun = step - options_.delay + 1; begun <= step; ++begun)
    if (OuterOptimizer* fragment = beginning_at(begun)) fragment->expect();
}

std::vector<OuterState> Synchronisation::states() const {
  std::vector<OuterState> all;
  for (const OuterOptimizer& fragment : fragments_)
    for (OuterState& state : fragment.states()) all.push_back(std::move(state));
  return all;
}

std::int64_t Synchronisation::state_bytes() const {
  std::int64_t bytes = 0;
  for (const OuterOptimizer& fragment : fragments_) bytes += fragment.state_bytes();
  return bytes;
}

void Synchronisation::take_anchors() {
  for (OuterOptimizer& fragment : fragments_) {
    if (fragment.in_flight()) finish(fragment);
    fragment.take_anchor();
  }
}

}  // namespace shoal::optim
