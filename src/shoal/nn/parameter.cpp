#include "shoal/nn/parameter.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/allocator.h"
#include "shoal/nn/autograd_hook.h"
#include "shoal/nn/weight_gradients.h"
#include "shoal/ops/random_fill.h"

namespace shoal::nn {

/// Operators write gradients through it. It outlives the parameter only within a graph that nobody
/// runs any more.
class Parameter::Target final : public ops::GradientSink {
 public:
  explicit Target(Parameter& owner) : owner_(owner) {}

  GradientSink::Target target() override {
    if (owner_.has_sink()) return {owner_.sink_, owner_.sink_written_};
    at::Tensor& gradient = owner_.tensor_.mutable_grad();
    // No sink: the gradient is autograd's own field, so that code which reads tensor.grad() finds
    // it.
    if (gradient.defined()) return {gradient, true};
    // The first gradient of a step overwrites the memory of the last step's: pages that were
    // touched before, at the same address, which peers have mapped.
    if (!owner_.spare_.defined()) {
      const ScopedCategory category(MemoryCategory::kGradients);
      owner_.spare_ =
          at::empty_like(owner_.tensor_.detach(), at::TensorOptions(owner_.gradient_type_));
    }
    gradient = std::exchange(owner_.spare_, at::Tensor());
    return {gradient, false};
  }
  void written() override {
    // From now on further uses in the same step add to it.
    if (owner_.sink_.defined()) owner_.sink_written_ = true;
  }
  bool later(const std::function<void()>& write) override {
    if (!owner_.late_) return false;
    ++owner_.pending_;
    owner_.late_->add(owner_, write);
    return true;
  }

 private:
  Parameter& owner_;
};

Parameter::Parameter(std::vector<std::int64_t> shape, model::Init init, double scale, bool decay)
    : shape_(std::move(shape)),
      init_(init),
      scale_(scale),
      decay_(decay),
      target_(std::make_shared<Target>(*this)) {
  box_ = {std::vector<std::int64_t>(shape_.size(), 0), shape_};
  // Meta tensors have a shape and no memory: a model of any size is described before anybody knows
  // where its parts will lie.
  tensor_ =
      at::empty(shape_, at::TensorOptions(at::kFloat).device(at::kMeta)).set_requires_grad(true);
}

Parameter::~Parameter() { unwatch(); }

void Parameter::add_name(std::string name) {
  if (std::find(names_.begin(), names_.end(), name) == names_.end())
    names_.push_back(std::move(name));
}

void Parameter::rename(const std::string& before, const std::string& after) {
  if (before == after) return;
  const auto found = std::find(names_.begin(), names_.end(), before);
  const bool known = std::find(names_.begin(), names_.end(), after) != names_.end();
  // Two names that become one (a module adopted under the name that the tied weight has already).
  if (found != names_.end() && known) {
    names_.erase(found);
  } else if (found != names_.end()) {
    *found = after;
  } else {
    add_name(after);
  }
}

std::int64_t Parameter::global_count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape_) count *= size;
  return count;
}

void Parameter::set_layout(mesh::Layout layout, mesh::Box box) {
  SHOAL_USER_CHECK(!materialized(), "set_layout", "{} has memory already", name());
  SHOAL_USER_CHECK(box.begin.size() == shape_.size() && box.end.size() == shape_.size(),
                   "set_layout", "{}: a box of {} dimensions for a tensor of {}", name(),
                   box.begin.size(), shape_.size());
  std::vector<std::int64_t> local(shape_.size());
  for (std::size_t d = 0; d < local.size(); ++d) {
    SHOAL_USER_CHECK(box.begin[d] >= 0 && box.begin[d] <= box.end[d] && box.end[d] <= shape_[d],
                     "set_layout", "{}: [{}, {}) of {} in dimension {}", name(), box.begin[d],
                     box.end[d], shape_[d], d);
    local[d] = box.end[d] - box.begin[d];
  }
  // Only the local part gets memory: the tensor has the shape of the box.
  layout_ = std::move(layout);
  box_ = std::move(box);
  tensor_ = at::empty(local, tensor_.options()).set_requires_grad(trainable_);
}

void Parameter::set_types(at::ScalarType compute, at::ScalarType gradient) {
  SHOAL_USER_CHECK(!materialized(), "set_types", "{} has memory already", name());
  tensor_ =
      at::empty(tensor_.sizes(), tensor_.options().dtype(compute)).set_requires_grad(trainable_);
  gradient_type_ = gradient;
}

void Parameter::set_device(at::Device device) {
  SHOAL_USER_CHECK(!materialized(), "set_device", "{} has memory already", name());
  device_ = device;
}

bool Parameter::materialized() const { return !tensor_.is_meta(); }

void Parameter::materialize() {
  if (materialized()) return;
  const ScopedCategory category(MemoryCategory::kParameters);
  set_tensor(at::empty(tensor_.sizes(), at::TensorOptions(tensor_.scalar_type()).device(device_)));
}

void Parameter::set_tensor(const at::Tensor& storage) {
  SHOAL_USER_CHECK(storage.sizes() == tensor_.sizes(), "set_tensor",
                   "{}: storage of {} elements for {} local ones, or another shape",
                   names_.empty() ? "parameter" : name(), storage.numel(), tensor_.numel());
  unwatch();
  // A gradient that had the type of the weights follows them; one that was given another type keeps
  // it.
  if (gradient_type_ == tensor_.scalar_type()) gradient_type_ = storage.scalar_type();
  // variable_data() gives a version counter of its own: other ranks or parameters may share the
  // memory, and their writes are no concern of this graph.
  tensor_ = storage.variable_data().set_requires_grad(trainable_);
  spare_ = at::Tensor();
  watch();
}

void Parameter::reset(Key key) {
  SHOAL_USER_CHECK(materialized(), "reset", "{} has no memory yet", name());
  ops::fill_box(tensor_.detach(), shape_, box_.begin, init_, scale_, key.child(name()));
}

at::Tensor Parameter::initial(Key key) const {
  // Drawn again rather than widened from the 16-bit weights, which have lost the digits that
  // masters keep.
  const at::Tensor values = at::empty(tensor_.sizes(), at::TensorOptions(at::kFloat));
  ops::fill_box(values, shape_, box_.begin, init_, scale_, key.child(name()));
  return values;
}

void Parameter::set_requires_grad(bool trainable) {
  trainable_ = trainable;
  tensor_.set_requires_grad(trainable);
  unwatch();
  watch();
}

void Parameter::set_sink(at::Tensor sink) {
  SHOAL_USER_CHECK(
      !sink.defined() || (sink.sizes() == tensor_.sizes() && sink.is_contiguous() &&
                          sink.scalar_type() == gradient_type_),
      "set_sink",
      "{}: the sink must be contiguous, of the local shape and in the gradient's type {}", name(),
      c10::toString(gradient_type_));
  sink_ = std::move(sink);
  sink_written_ = false;
  spare_ = at::Tensor();
}

bool Parameter::has_sink() {
  // Asked for when a gradient arrives: a sharding unit takes memory for its gradients only then.
  if (!sink_.defined() && make_sink_) make_sink_();
  return sink_.defined();
}

at::Tensor Parameter::gradient() const {
  if (sink_.defined()) return sink_written_ ? sink_ : at::Tensor();
  return tensor_.grad();
}

void Parameter::zero_gradient() {
  const ops::GradientSink::Target target = target_->target();
  target.tensor.zero_();
  target_->written();
}

void Parameter::clear_gradient() {
  sink_written_ = false;
  uses_ = 0;
  // Products that are still put off belong to a step that was given up.
  pending_ = 0;
  ready_due_ = false;
  at::Tensor& gradient = tensor_.mutable_grad();
  // Kept for the next step instead of freed: first touch of fresh pages is ten times slower than
  // reuse.
  if (gradient.defined() && !sink_.defined() && gradient.is_contiguous()) spare_ = gradient;
  gradient = at::Tensor();
}

void Parameter::accumulated() {
  at::Tensor& gradient = tensor_.mutable_grad();
  // Autograd made this gradient itself, because an operator without knowledge of sinks used the
  // parameter. It is moved to the sink. An operator that wrote the sink left an undefined one, and
  // the hook fires all the same.
  if (gradient.defined() && has_sink()) {
    const c10::AutoGradMode not_recording(false);
    if (sink_written_) {
      sink_.add_(gradient);
    } else {
      sink_.copy_(gradient);
    }
    sink_written_ = true;
    gradient = at::Tensor();
  } else {
    comm::retag(gradient, MemoryCategory::kTemporary, MemoryCategory::kGradients);
  }
  // A block that is recomputed runs a backward pass of its own, after which the hook fires: a
  // parameter that several of them use is complete only after the last.
  if (++uses_ < expected_uses_) return;
  uses_ = 0;
  // Whoever listens may send the gradient at once: what is put off must be written before.
  ready_due_ = pending_ > 0;
  if (!ready_due_) ready();
}

void Parameter::late_written() {
  if (pending_ > 0 && --pending_ == 0 && ready_due_) ready();
}

void Parameter::ready() {
  ready_due_ = false;
  // In the order of registration, on the thread that runs backward: a listener may start a
  // reduction, and must not wait for one that other ranks start later.
  for (const Listener& listener : listeners_) listener(*this);
}

void Parameter::watch() {
  if (materialized() && trainable_) set_post_accumulate_hook(tensor_, [this] { accumulated(); });
}

void Parameter::unwatch() {
  if (materialized()) set_post_accumulate_hook(tensor_, nullptr);
}

}  // namespace shoal::nn
