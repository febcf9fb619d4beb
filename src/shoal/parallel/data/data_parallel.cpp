#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/data/joined_reduction.h"
#include "shoal/parallel/data/used_parameters.h"
#include "shoal/parallel/ownership.h"

namespace shoal::parallel {
namespace {

/// Parameters whose gradients are sent together: one in place, several in a flat buffer.
struct Bucket {
  std::vector<std::size_t> members;  ///< indices of parameters
  at::Tensor flat;                   ///< undefined: gradients are reduced where they are
  std::size_t ready = 0;             ///< members whose gradient of this step is complete
};

// Buckets are sent in a fixed order, the same on every rank, whatever order gradients become ready
// in; a bucket waits for those before it. A bucket that never fills, because this rank does not use
// a parameter, is sent by `finish`, when the ranks have exchanged which parameters they use. That
// exchange has a group of its own, for it may overtake buckets.
class DataParallel final : public GradientReduction {
 public:
  DataParallel(const Parameters& parameters, comm::Group group, const DataParallelOptions& options)
      : options_(options),
        owned_(whole_ranges(parameters, group)),
        parameters_(trained_among(parameters)),
        group_(std::move(group)),
        control_(group_.split(0, group_.rank())) {
    check_equal_parameters(parameters_, control_);
    in_place_ = agree_on_in_place();
    // Until the first step has shown the order of backward, the reverse of forward is the best
    // guess.
    std::vector<std::size_t> order(parameters_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    make_buckets(order);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      // The listener stays with the parameter, which may outlive this object.
      parameters_[i]->on_gradient_ready([this, i, alive = std::weak_ptr(alive_)](nn::Parameter&) {
        if (!alive.expired()) ready(i);
      });
    }
  }

  void begin(std::int64_t index, std::int64_t count) override {
    last_ = index + 1 == count;
    if (index > 0) return;
    if (!learned_.empty()) make_buckets(std::exchange(learned_, {}));
    for (Bucket& bucket : buckets_) bucket.ready = 0;
    arrived_.assign(parameters_.size(), false);
    sent_ = 0;
  }

  void finish() override {
    // A bucket that another rank has sent holds a parameter that it uses, so `used` makes this rank
    // send it too, and all ranks start the same reductions in the same order.
    const std::vector<bool> used = agree_on_used(parameters_, control_);
    for (; sent_ < buckets_.size(); ++sent_) send(buckets_[sent_], &used);
    for (comm::Work& work : works_) work.order();
    works_.clear();
    last_ = false;
    if (learning_) learn_order();
  }

  const std::vector<OwnedRange>& owned() const override { return owned_; }
  std::vector<at::Tensor> gradients() const override { return whole_gradients(owned_); }

 private:
  bool agree_on_in_place() const {
    if (options_.strategy != DataParallelOptions::Strategy::kAuto)
      return options_.strategy == DataParallelOptions::Strategy::kInPlace;
    // The buckets follow from the answer, so all ranks must have the same one.
    const at::Tensor visible = at::empty({1}, at::kByte);
    *visible.data_ptr<std::uint8_t>() =
        std::all_of(parameters_.begin(), parameters_.end(),
                    [&](const auto& p) { return group_.visible_to_peers(p->tensor()); });
    control_.all_reduce(visible, {.reduction = comm::Reduction::kMin});
    return *visible.const_data_ptr<std::uint8_t>() != 0;
  }

  void make_buckets(const std::vector<std::size_t>& order) {
    buckets_.clear();
    bucket_of_.assign(parameters_.size(), 0);
    std::size_t bytes = 0;
    at::ScalarType type = at::kFloat;
    for (const std::size_t i : order) {
      const at::ScalarType wanted = parameters_[i]->gradient_type();
      const std::size_t size =
          static_cast<std::size_t>(parameters_[i]->tensor().numel()) * c10::elementSize(wanted);
      const bool fits = !in_place_ && !buckets_.empty() && bytes + size <= options_.bucket_bytes &&
                        wanted == type;
      if (!fits) {
        buckets_.emplace_back();
        bytes = 0;
        type = wanted;
      }
      bytes += size;
      bucket_of_[i] = buckets_.size() - 1;
      buckets_.back().members.push_back(i);
    }
    if (in_place_) return;
    for (const auto& parameter : parameters_)
      parameter->set_sink({});  // frees the old buckets first: there are never two sets
    const ScopedCategory category(MemoryCategory::kGradients);
    for (Bucket& bucket : buckets_) {
      std::int64_t count = 0;
      for (const std::size_t i : bucket.members) count += parameters_[i]->tensor().numel();
      const nn::Parameter& first = *parameters_[bucket.members.front()];
      bucket.flat =
          at::zeros({count}, at::TensorOptions(first.gradient_type()).device(first.device()));
      std::int64_t at = 0;
      for (const std::size_t i : bucket.members) {
        const std::int64_t size = parameters_[i]->tensor().numel();
        parameters_[i]->set_sink(
            bucket.flat.slice(0, at, at + size).view(parameters_[i]->tensor().sizes()));
        at += size;
      }
    }
  }

  void ready(std::size_t i) {
    if (!last_ || arrived_[i]) return;
    arrived_[i] = true;
    if (learning_) observed_.push_back(i);
    ++buckets_[bucket_of_[i]].ready;
    for (; sent_ < buckets_.size() && buckets_[sent_].ready == buckets_[sent_].members.size();
         ++sent_)
      send(buckets_[sent_], nullptr);
    // What was sent makes progress while backward computes.
    group_.poll();
  }

  /// `used` is null while backward runs and every member is known to be used.
  void send(const Bucket& bucket, const std::vector<bool>* used) {
    const bool any = !used || std::any_of(bucket.members.begin(), bucket.members.end(),
                                          [&](std::size_t i) { return (*used)[i]; });
    if (!any) return;
    if (bucket.flat.defined()) {
      // A parameter that nobody uses may hold an old gradient. It is not read afterwards, but an
      // overflow in it would spread into the sum.
      for (const std::size_t i : bucket.members)
        if (used && !(*used)[i]) parameters_[i]->sink().zero_();
      works_.push_back(group_.all_reduce(bucket.flat, {.async = true}));
    } else {
      works_.push_back(
          group_.all_reduce(parameters_[bucket.members.front()]->gradient(), {.async = true}));
    }
  }

  /// Rank 0 sends the order that it saw to all ranks; parameters that it does not use come last.
  void learn_order() {
    learning_ = false;
    const auto count = static_cast<std::int64_t>(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (!arrived_[i]) observed_.push_back(i);
    const at::Tensor order = at::empty({count}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i)
      order.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(observed_[i]);
    control_.broadcast(order, 0);
    // The order takes effect when the next step begins: the gradients in the current buckets are
    // about to be read.
    for (std::int64_t i = 0; i < count; ++i)
      learned_.push_back(static_cast<std::size_t>(order.const_data_ptr<std::int64_t>()[i]));
    observed_.clear();
  }

  std::shared_ptr<int> alive_ = std::make_shared<int>();  ///< listeners outlive this
  DataParallelOptions options_;
  std::vector<OwnedRange> owned_;
  Parameters parameters_;
  comm::Group group_;
  comm::Group control_;
  bool in_place_ = false;
  bool last_ = false;
  bool learning_ = true;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  ///< by parameter
  std::vector<bool> arrived_;
  std::vector<std::size_t> observed_;  ///< first step: parameters as they became ready
  std::vector<std::size_t> learned_;   ///< what all agreed on, until it takes effect
  std::size_t sent_ = 0;
  std::vector<comm::Work> works_;
};

}  // namespace

std::unique_ptr<GradientReduction> data_parallel(nn::Module& model, comm::Group group,
                                                 const DataParallelOptions& options) {
  if (group.size() == 1) return reduce_after_backward(model, std::move(group));
  return std::make_unique<DataParallel>(model.parameters(), std::move(group), options);
}

std::unique_ptr<GradientReduction> data_parallel_on(nn::Module& model, const mesh::Mesh& mesh,
                                                    const DataParallelOptions& options) {
  std::vector<std::unique_ptr<GradientReduction>> parts;
  const std::vector<HeldParameters> sets = by_holders(model.parameters(), mesh);
  for (const HeldParameters& set : sets) {
    comm::Group group = mesh.along(set.holders.axes);
    // Techniques may use a group of the same ranks in the same backward pass.
    if (sets.size() > 1) group = group.split(0, group.rank());
    parts.push_back(group.size() == 1
                        ? reduce_after_backward(set.parameters, group)
                        : std::make_unique<DataParallel>(set.parameters, group, options));
  }
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<Joined<GradientReduction>>(model, std::move(parts));
}

}  // namespace shoal::parallel
