#include "shoal/optim/synchronisation.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
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

std::int64_t values_in(const std::vector<at::Tensor>& parameters) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters) count += parameter.numel();
  return count;
}

}  // namespace

std::int64_t first_exchange(std::int64_t every, int fragments, int fragment) {
  return (fragment + 1) * every / fragments;
}

std::vector<std::vector<at::Tensor>> even_fragments(const std::vector<at::Tensor>& parameters,
                                                    int fragments, std::int64_t multiple) {
  SHOAL_USER_CHECK(fragments >= 1 && multiple >= 1, "even_fragments",
                   "{} fragments at multiples of {}", fragments, multiple);
  for (const at::Tensor& parameter : parameters)
    SHOAL_USER_CHECK(parameter.is_contiguous(), "even_fragments", "parameters are contiguous");
  const std::int64_t count = values_in(parameters);
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
  std::int64_t count = 0;
  for (const std::vector<at::Tensor>& parameters : fragments) count += values_in(parameters);
  {
    const ScopedCategory category(MemoryCategory::kOptimizer);
    const bool rounded = options.outer.coding.codec != collective::Codec::kNone;
    memory_.anchor = at::zeros({count}, at::kFloat);
    if (options.outer.momentum > 0) memory_.momentum = at::zeros({count}, at::kFloat);
    if (rounded && options.outer.error_feedback) memory_.residual = at::zeros({count}, at::kFloat);
  }
  const auto part = [](const at::Tensor& all, std::int64_t begin, std::int64_t values) {
    return all.defined() ? all.narrow(0, begin, values) : all;
  };
  std::int64_t begin = 0;
  for (std::vector<at::Tensor>& parameters : fragments) {
    const std::int64_t values = values_in(parameters);
    fragments_.emplace_back(
        std::move(parameters), members, options.outer,
        OuterMemory{part(memory_.anchor, begin, values), part(memory_.momentum, begin, values),
                    part(memory_.residual, begin, values)});
    begin += values;
  }
}

int Synchronisation::beginning_at(std::int64_t step) const {
  if (step < 1) return -1;
  const std::int64_t in_round = (step - 1) % options_.every + 1;
  const int count = static_cast<int>(fragments_.size());
  for (int f = 0; f < count; ++f)
    if (first_exchange(options_.every, count, f) == in_round) return f;
  return -1;
}

int Synchronisation::due_at(std::int64_t step) const {
  const std::int64_t begun = step - options_.delay;
  return begun > restarted_ ? beginning_at(begun) : -1;
}

bool Synchronisation::writes_after(std::int64_t step) const { return due_at(step) >= 0; }

// The one in flight ends first, so that there are never two.
std::optional<Synchronisation::Exchange> Synchronisation::after_step(std::int64_t step) {
  std::optional<Exchange> taken;
  const int due = due_at(step);
  const int next = beginning_at(step);
  if (due >= 0 && options_.delay > 0) taken = finish(due);
  if (next >= 0) fragments_[static_cast<std::size_t>(next)].begin(step);
  if (due >= 0 && options_.delay == 0) taken = finish(due);
  // What is in flight moves while nobody waits for it.
  fragments_.front().poll();
  return taken;
}

Synchronisation::Exchange Synchronisation::finish(int fragment) {
  return {fragment, fragments_[static_cast<std::size_t>(fragment)].finish(options_.mix)};
}

void Synchronisation::wait() {
  for (OuterOptimizer& fragment : fragments_)
    if (fragment.in_flight()) fragment.wait();
}

void Synchronisation::resume(std::int64_t step) {
  // Begun after one of the last `delay` steps, and not finished in `step` itself. Those from before
  // a restart have no result to come.
  for (std::int64_t begun = std::max(step - options_.delay, restarted_) + 1; begun <= step;
       ++begun) {
    const int fragment = beginning_at(begun);
    if (fragment >= 0) fragments_[static_cast<std::size_t>(fragment)].expect();
  }
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
    if (fragment.in_flight()) fragment.finish(options_.mix);
    fragment.take_anchor();
  }
}

void Synchronisation::swap_anchors() const {
  for (const OuterOptimizer& fragment : fragments_) fragment.swap_anchor();
}

}  // namespace shoal::optim
