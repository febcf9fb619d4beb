#include "shoal/train/member_resumption.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/optim/update.h"
#include "shoal/parallel/box_view.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/job_options.h"
#include "shoal/train/member_changes.h"
#include "shoal/train/state_items.h"

namespace shoal::train {
namespace {

constexpr const char* kDifference = "outer.difference.";
constexpr const char* kSumResidual = "outer.sum_residual.";

std::span<float> span_of(const at::Tensor& tensor, std::int64_t begin, std::int64_t end) {
  return {tensor.data_ptr<float>() + begin, static_cast<std::size_t>(end - begin)};
}

std::string of_member(int member, const char* what) {
  return fmt::format("member.{}.{}", member, what);
}

/// A box of a slice that a checkpoint has, whole or a part of it.
struct Found {
  std::size_t slice = 0;
  std::int64_t begin = 0;  ///< of `own`, among the values of the slice
  mesh::Box own;           ///< a box of the slice
  mesh::Box box;           ///< the part of it that the checkpoint has
};

/// Returns what a slice has of the box that begins at `begin` and has the shape `shape`.
std::vector<Found> found_in(const parallel::OwnedRange& range, std::size_t slice,
                            const std::vector<std::int64_t>& begin,
                            const std::vector<std::int64_t>& shape) {
  mesh::Box saved{begin, begin};
  for (std::size_t d = 0; d < shape.size(); ++d) saved.end[d] += shape[d];
  std::vector<Found> found;
  std::int64_t at = 0;
  for (const mesh::Box& own : boxes_in(range, 0, range.end - range.begin)) {
    const mesh::Box both = mesh::intersection(own, saved);
    if (both.count() > 0) found.push_back({slice, at, own, both});
    at += own.count();
  }
  return found;
}

/// Returns true where the manifest has a tensor whose name begins with `prefix`.
bool has_tensors(const checkpoint::format::Manifest& manifest, const std::string& prefix) {
  const auto found = std::lower_bound(
      manifest.tensors.begin(), manifest.tensors.end(), prefix,
      [](const auto& tensor, const std::string& text) { return tensor.name < text; });
  return found != manifest.tensors.end() && found->name.starts_with(prefix);
}

}  // namespace

void check_version_of_members(const std::string& path) {
  const auto manifest = checkpoint::format::read_manifest(path);
  if (!has_tensors(manifest, "outer.rank-") && !has_tensors(manifest, "member.0.outer.rank-"))
    return;
  throw Error(ErrorKind::kConfig, "checkpoint",
              fmt::format("{} was saved by an earlier version, with the state of exchanges as each "
                          "rank had it: members cannot go on with it",
                          path))
      .hint("model.from begins a run of any members with the saved model");
}

MemberResumption::MemberResumption(std::string path, const RunRecord& saved, const Run& run)
    : path_(std::move(path)),
      saved_(saved),
      run_(run),
      manifest_(checkpoint::format::read_manifest(path_)),
      saved_members_(members_of(saved)),
      members_(run.exchange ? run.exchange->members() : 0),
      member_(run.exchange ? run.exchange->member() : 0) {
  int found = 0;
  while (manifest_.find(of_member(found, "loss_scale"))) ++found;
  if (found != saved_members_) {
    throw Error(ErrorKind::kData, "checkpoint",
                fmt::format("{} has the state of {} members, and its record says {}", path_, found,
                            saved_members_));
  }
}

bool MemberResumption::is_new() const {
  return saved_members_ > 0 && (members_ == 0 || member_ >= saved_members_);
}

bool MemberResumption::has(const std::string& prefix) const {
  return has_tensors(manifest_, prefix);
}

void MemberResumption::load_items(const Items& items, const std::string& scope) const {
  checkpoint::load(path_, items, run_.group, {.scope = scope});
}

// All ranks come to every load, also those that take nothing from it.
void MemberResumption::load() {
  updates_ = at::zeros({static_cast<std::int64_t>(run_.owned.size())}, at::kLong);
  if (members_ > 0) load_own();
  if (saved_members_ > 0 && (members_ == 0 || members_ > saved_members_)) load_mean();
  const auto* counts = updates_.const_data_ptr<std::int64_t>();
  run_.optimizer.set_updates(std::vector<std::int64_t>(counts, counts + updates_.numel()));
  if (saved_members_ == 0) return;
  load_momentum();
  finish_exchanges();
  load_residuals();
}

checkpoint::StateItem MemberResumption::state_item(const std::string& prefix,
                                                   const optim::State& state,
                                                   const at::Tensor& values) const {
  return item_of(prefix + "optimizer." + state.kind + ".", run_.owned[state.slice], values);
}

void MemberResumption::add_updates(Items& items, const std::string& prefix) const {
  for (std::size_t i = 0; i < run_.owned.size(); ++i) {
    items.push_back({.name = prefix + "optimizer.updates." + run_.optimizer.slices()[i].name,
                     .local = updates_.select(0, static_cast<std::int64_t>(i)),
                     .global_shape = {},
                     .boxes = {}});
  }
}

// A rank of a new member takes nothing, and looks at what those of the first member take.
void MemberResumption::load_own() {
  const std::string own = saved_members_ > 0 ? of_member(is_new() ? 0 : member_, "") : "";
  Items optimizer;
  if (!is_new()) {
    for (const optim::State& state : run_.optimizer.states())
      optimizer.push_back(state_item(own, state, state.tensor));
    add_updates(optimizer, own);
  }
  load_items(optimizer, own + "optimizer.");
  if (saved_members_ == 0) return;
  Items model;
  const at::Tensor scale = at::zeros({3}, at::kDouble);
  if (!is_new()) {
    for (std::size_t i = 0; i < run_.owned.size(); ++i)
      model.push_back(item_of(own + "model.", run_.owned[i], run_.optimizer.master(i)));
    model.push_back({.name = own + "loss_scale", .local = scale, .global_shape = {3}, .boxes = {}});
  }
  load_items(model, own + "model.");
  if (!is_new()) set_scale({scale});
}

/// Returns the kinds of states that any saved member's optimizer has: the same on all ranks.
std::set<std::string> MemberResumption::saved_kinds() const {
  std::set<std::string> kinds;
  for (int m = 0; m < saved_members_; ++m) {
    const std::string prefix = of_member(m, "optimizer.");
    for (const auto& tensor : manifest_.tensors) {
      if (!tensor.name.starts_with(prefix)) continue;
      kinds.insert(
          tensor.name.substr(prefix.size(), tensor.name.find('.', prefix.size()) - prefix.size()));
    }
  }
  kinds.erase("updates");
  return kinds;
}

void MemberResumption::load_mean() {
  const std::set<std::string> kinds = saved_kinds();
  load_least(kinds);
  for (const std::string& kind : kinds) load_mean_of(kind);
}

// One kind after the other: what it takes beside the state is one more of that kind, or two where
// the state is not fp32.
void MemberResumption::load_mean_of(const std::string& kind) {
  std::vector<const optim::State*> states;
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> terms;
  for (const optim::State& state : run_.optimizer.states()) {
    if (!is_new() || state.kind != kind) continue;
    states.push_back(&state);
    const auto fresh = [&] { return at::empty(state.tensor.sizes(), at::kFloat); };
    sums.push_back(state.tensor.scalar_type() == at::kFloat ? state.tensor : fresh());
    terms.push_back(fresh());
  }
  for (int m = 0; m < saved_members_; ++m) {
    Items items;
    for (std::size_t s = 0; s < states.size(); ++s)
      items.push_back(state_item(of_member(m, ""), *states[s], m == 0 ? sums[s] : terms[s]));
    load_items(items, of_member(m, "optimizer.") + kind + ".");
    for (std::size_t s = 0; m > 0 && s < sums.size(); ++s) sums[s].add_(terms[s]);
  }
  for (std::size_t s = 0; s < states.size(); ++s) {
    sums[s].div_(saved_members_);
    if (!states[s]->tensor.is_same(sums[s])) states[s]->tensor.copy_(sums[s]);
  }
}

/// Takes the least of the numbers of updates and of the loss scales. `kinds`: those of saved
/// states; the load refuses states that the run has beside them.
void MemberResumption::load_least(const std::set<std::string>& kinds) {
  std::vector<at::Tensor> scales;
  at::Tensor least;
  for (int m = 0; m < saved_members_; ++m) {
    Items items;
    const at::Tensor scale = at::zeros({3}, at::kDouble);
    if (is_new()) {
      add_updates(items, of_member(m, ""));
      for (const optim::State& state : run_.optimizer.states()) {
        if (!kinds.contains(state.kind))
          items.push_back(state_item(of_member(m, ""), state, state.tensor));
      }
      items.push_back(
          {.name = of_member(m, "loss_scale"), .local = scale, .global_shape = {3}, .boxes = {}});
    }
    load_items(items, of_member(m, "optimizer.updates."));
    if (!is_new()) continue;
    scales.push_back(scale);
    least = m == 0 ? updates_.clone() : least.minimum(updates_);
  }
  if (!is_new()) return;
  updates_.copy_(least);
  set_scale(scales);
}

// A run that had no scale leaves zeros.
void MemberResumption::set_scale(const std::vector<at::Tensor>& saved) const {
  if (!run_.scale) return;
  const double* least = nullptr;
  for (const at::Tensor& one : saved) {
    const auto* state = one.const_data_ptr<double>();
    if (*state > 0 && (!least || *state < *least)) least = state;
  }
  if (!least) return;
  run_.scale->restore({.scale = least[0],
                       .good_steps = static_cast<std::int64_t>(least[1]),
                       .skipped = static_cast<std::int64_t>(least[2])});
}

void MemberResumption::load_momentum() {
  if (!has("outer.momentum.")) return;
  // A run without members needs it for an exchange in flight alone.
  if (!run_.exchange && !has(kDifference)) return;
  Items items;
  for (std::size_t i = 0; i < run_.owned.size(); ++i) {
    const parallel::OwnedRange& range = run_.owned[i];
    momentum_.push_back(run_.exchange ? run_.exchange->momentum_of(i)
                                      : at::empty({range.end - range.begin}, at::kFloat));
    if (!momentum_.back().defined()) {
      momentum_.clear();
      return;
    }
    items.push_back(item_of("outer.momentum.", range, momentum_.back()));
  }
  load_items(items, "outer.momentum.");
}

std::vector<MemberResumption::Boxed> MemberResumption::read_boxes(const std::string& prefix) const {
  std::map<std::string, std::size_t> slices;
  for (std::size_t i = 0; i < run_.owned.size(); ++i)
    slices.emplace(run_.owned[i].parameter->name(), i);
  Items items;
  std::vector<std::vector<Found>> found;
  for (const auto& tensor : manifest_.tensors) {
    if (!tensor.name.starts_with(prefix)) continue;
    const NamedBox saved = parse_named_box(tensor.name.substr(prefix.size()), path_);
    const auto slice = slices.find(saved.parameter);
    if (slice == slices.end()) continue;
    check_box(saved, tensor.shape, run_.owned[slice->second].parameter->global_shape(), path_);
    auto here = found_in(run_.owned[slice->second], slice->second, saved.begin, tensor.shape);
    if (here.empty()) continue;
    checkpoint::StateItem item{
        .name = tensor.name, .local = {}, .global_shape = tensor.shape, .boxes = {}};
    std::int64_t count = 0;
    for (const Found& one : here) {
      mesh::Box& box = item.boxes.emplace_back(one.box);
      for (std::size_t d = 0; d < box.begin.size(); ++d) {
        box.begin[d] -= saved.begin[d];
        box.end[d] -= saved.begin[d];
      }
      count += box.count();
    }
    item.local = at::empty({count}, at::kFloat);
    items.push_back(std::move(item));
    found.push_back(std::move(here));
  }
  load_items(items, prefix);
  std::vector<Boxed> result(run_.owned.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::int64_t begin = 0;
    for (const Found& one : found[i]) {
      Boxed& boxed = result[one.slice];
      if (!boxed.values.defined()) {
        const parallel::OwnedRange& range = run_.owned[one.slice];
        boxed.values = at::zeros({range.end - range.begin}, at::kFloat);
        boxed.present = at::zeros({range.end - range.begin}, at::kBool);
      }
      const at::Tensor part = items[i].local.narrow(0, begin, one.box.count());
      const auto place = [&](const at::Tensor& all) {
        const at::Tensor own = all.narrow(0, one.begin, one.own.count());
        return parallel::view_of(own.view(parallel::shape_of(one.own)), one.own, one.box);
      };
      place(boxed.values).copy_(part.view(parallel::shape_of(one.box)));
      place(boxed.present).fill_(true);
      begin += one.box.count();
    }
  }
  return result;
}

void MemberResumption::finish_exchanges() {
  if (has(kDifference)) {
    const std::vector<Boxed> sums = read_boxes(kDifference);
    // As the saved run would have done it.
    const optim::SynchronisationOptions how =
        exchange_options(parse_job(saved_.job, saved_.job_file).config).synchronisation;
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (sums[i].values.defined()) finish_slice(i, sums[i], how);
  }
  if (!run_.exchange || !is_new()) return;
  for (std::size_t i = 0; i < run_.owned.size(); ++i) {
    const at::Tensor& master = run_.optimizer.master(i);
    master.view({-1}).copy_(run_.exchange->anchor_of(i));
  }
}

void MemberResumption::finish_slice(std::size_t slice, const Boxed& sum,
                                    const optim::SynchronisationOptions& how) const {
  if (!std::isfinite(optim::sum_of_squares(sum.values.const_data_ptr<float>(),
                                           static_cast<std::size_t>(sum.values.numel())))) {
    throw Error(ErrorKind::kNonFinite, "outer_optimizer",
                fmt::format("the sum of an exchange that was in flight in {} is not finite: {}",
                            path_, run_.owned[slice].parameter->name()))
        .hint("go on from an earlier checkpoint");
  }
  if (!run_.optimizer.master(slice).defined()) {
    throw Error(ErrorKind::kConfig, "train",
                fmt::format("an exchange was in flight in {}, whose result is fp32, and "
                            "precision.master_weights = false",
                            path_))
        .hint("go on with precision.master_weights = true");
  }
  const at::Tensor own = run_.optimizer.master(slice).view({-1});
  // Without members the parameters are the anchor.
  const at::Tensor anchor = run_.exchange ? run_.exchange->anchor_of(slice) : own;
  const bool* present = sum.present.const_data_ptr<bool>();
  const bool* const end = present + sum.present.numel();
  for (const bool* first = std::find(present, end, true); first != end;) {
    const bool* const last = std::find(first, end, false);
    const auto span = [&](const at::Tensor& all) {
      return span_of(all, first - present, last - present);
    };
    optim::move_anchor(span(anchor), span(sum.values),
                       momentum_.empty() ? std::span<float>() : span(momentum_[slice]),
                       saved_members_, how.outer);
    if (run_.exchange) optim::mix_anchor(span(own), span(anchor), how.mix);
    first = std::find(last, end, true);
  }
}

void MemberResumption::load_residuals() {
  if (!run_.exchange) return;
  const std::vector<Boxed> sums = read_boxes(kSumResidual);
  check_residuals(sums);
  if (!has(kSumResidual)) return;
  for (const MemberExchange::Part& part : run_.exchange->sum_residuals())
    part.values.copy_(sums[part.slice].values.narrow(0, part.begin, part.values.numel()));
  if (members_ != saved_members_) {
    fold_residuals();
    return;
  }
  Items items;
  const std::string prefix = of_member(member_, "outer.residual.");
  for (std::size_t i = 0; i < run_.owned.size(); ++i)
    items.push_back(item_of(prefix, run_.owned[i], run_.exchange->residual_of(i)));
  load_items(items, prefix);
}

// All members together had all values.
void MemberResumption::check_residuals(const std::vector<Boxed>& sums) const {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const at::Tensor residual = run_.exchange->residual_of(i);
    if (!residual.defined() || residual.numel() == 0) continue;
    if (sums[i].present.defined() && sums[i].present.all().item<bool>()) continue;
    throw Error(ErrorKind::kData, "checkpoint",
                fmt::format("{} has not all of what rounding took from the sums of {}", path_,
                            run_.owned[i].parameter->name()));
  }
}

// Adds what members owe for their own values to what is owed for the sums. A member adds up only
// its part of the values, so it reads no more of what the others owe.
void MemberResumption::fold_residuals() const {
  const std::vector<MemberExchange::Part> parts = run_.exchange->sum_residuals();
  for (int m = 0; m < saved_members_; ++m) {
    const std::string prefix = of_member(m, "outer.residual.");
    // An item for each slice, with all parts of it behind each other.
    std::map<std::size_t, checkpoint::StateItem> items;
    for (const MemberExchange::Part& part : parts) {
      const parallel::OwnedRange& range = run_.owned[part.slice];
      checkpoint::StateItem& item = items[part.slice];
      item.name = prefix + range.parameter->name();
      item.global_shape = range.parameter->global_shape();
      for (mesh::Box& box : boxes_in(range, part.begin, part.begin + part.values.numel()))
        item.boxes.push_back(std::move(box));
    }
    Items list;
    for (auto& [slice, item] : items) {
      std::int64_t count = 0;
      for (const mesh::Box& box : item.boxes) count += box.count();
      item.local = at::empty({count}, at::kFloat);
      list.push_back(item);
    }
    load_items(list, prefix);
    std::map<std::size_t, std::int64_t> taken;
    for (const MemberExchange::Part& part : parts) {
      std::int64_t& begin = taken[part.slice];
      part.values.add_(items.at(part.slice).local.narrow(0, begin, part.values.numel()));
      begin += part.values.numel();
    }
  }
  for (const MemberExchange::Part& part : parts)
    part.values.mul_(static_cast<double>(members_) / saved_members_);
}

}  // namespace shoal::train
