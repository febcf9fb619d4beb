#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/mesh/layout.h"
#include "shoal/model/model_spec.h"
#include "shoal/ops/gradient_sink.h"

namespace shoal::nn {

class WeightGradients;

/// One logical parameter of a model: its names and global shape, and the part that this rank holds.
///
/// A tied weight is one Parameter with two names. Parallel techniques change `layout`, the compute
/// tensor and the owned shard before `materialize`; the model only ever uses `tensor()`. Made by
/// Module::parameter; lives as long as any module that registered it. Not thread-safe.
class Parameter {
 public:
  /// `shape` is global. The tensor is on the meta device until `materialize`.
  Parameter(std::vector<std::int64_t> shape, model::Init init, double scale, bool decay);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  /// The first name is canonical: initialisation and checkpoints go by it.
  const std::string& name() const { return names_.front(); }
  const std::vector<std::string>& names() const { return names_; }
  void add_name(std::string name);
  /// Replaces the name `before` by `after`, when a module was adopted by another. A name that the
  /// parameter has already is not added twice.
  void rename(const std::string& before, const std::string& after);

  const std::vector<std::int64_t>& global_shape() const { return shape_; }
  std::int64_t global_count() const;
  model::Init init() const { return init_; }
  double scale() const { return scale_; }
  bool decay() const { return decay_; }

  /// Return the layout of the global tensor on the mesh, and the box of it that this rank's compute
  /// tensor holds (all of it by default).
  const mesh::Layout& layout() const { return layout_; }
  const mesh::Box& box() const { return box_; }
  void set_layout(mesh::Layout layout, mesh::Box box);

  /// Returns the compute tensor, which forward reads. It is a leaf that requires grad, of the local
  /// box's shape.
  const at::Tensor& tensor() const { return tensor_; }
  /// Sets the type of the compute tensor, and the type in which its gradient is kept and summed;
  /// both are float32 by default. Must be called before the parameter has memory.
  void set_types(at::ScalarType compute, at::ScalarType gradient);
  at::ScalarType gradient_type() const { return gradient_type_; }
  /// Sets where the compute tensor, its gradient and the state of its optimizer will lie; the CPU
  /// by default. Must be called before the parameter has memory.
  void set_device(at::Device device);
  at::Device device() const { return device_; }
  bool materialized() const;
  /// Returns the parameter as an argument of operators: the compute tensor, and the place of its
  /// gradient. An operator writes the gradient once, straight into the sink or, without one, into
  /// `tensor().grad()`; autograd sees an undefined gradient. The parameter must outlive the
  /// backward pass.
  ops::Weight weight() const { return {tensor_, target_}; }

  /// Takes memory for the compute tensor (category parameters) unless `set_tensor` gave it some.
  void materialize();
  /// Lets the parameter live in `storage` (of the local shape), a view of a flat buffer or of a
  /// SharedBuffer. The compute tensor is then a new leaf over it.
  void set_tensor(const at::Tensor& storage);
  /// Fills the local box with functions of (key, canonical name, global element index): the same
  /// global tensor for any layout. Never touches other elements.
  void reset(Key key);
  /// Returns the values of `reset` in float32, before they are rounded to the type of the compute
  /// tensor: the initial master weights.
  at::Tensor initial(Key key) const;
  bool requires_grad() const { return trainable_; }
  void set_requires_grad(bool trainable);  ///< false: frozen, no gradient is computed for it
  /// Says that a rule changes this frozen parameter after each step (the bias of a router), so that
  /// techniques which keep copies of it must renew them.
  bool adjusted() const { return adjusted_; }
  void set_adjusted(bool adjusted) { adjusted_ = adjusted; }

  /// Return and set the place for the gradient of this parameter: a view of the local shape (part
  /// of a bucket) in the gradient's type, or undefined to let autograd keep its own. An operator
  /// may write there itself (then it calls `ready`); otherwise the hook copies or adds what
  /// autograd accumulated.
  const at::Tensor& sink() const { return sink_; }
  void set_sink(at::Tensor sink);
  /// `maker` is called before a gradient is written while there is no sink: it may set one. Null
  /// removes it.
  void on_sink_wanted(std::function<void()> maker) { make_sink_ = std::move(maker); }

  /// Returns the gradient of the micro-batches so far: the sink if there is one, else autograd's.
  /// Undefined when there is no gradient yet.
  at::Tensor gradient() const;
  /// Makes the gradient defined and zero, because other ranks have one for this parameter.
  void zero_gradient();
  /// Drops the gradient but keeps its memory, which the next gradient overwrites.
  void clear_gradient();

  /// While `list` is set, operators put the products of this parameter's gradient off into it;
  /// null: they compute them in backward. A pipeline sets it around the backward pass of a stage.
  void put_off(WeightGradients* list) { late_ = list; }
  /// Is called by the list when one of these products has been written.
  void late_written();

  /// Listeners are called in registration order each time this parameter's gradient of one backward
  /// pass is complete. Only Shoal calls `ready`: from the post-accumulate hook, or from an operator
  /// that wrote the sink itself, possibly after backward has returned. It is not called while a
  /// product of this parameter is put off, but once after the last of them.
  using Listener = std::function<void(Parameter&)>;
  void on_gradient_ready(Listener listener) { listeners_.push_back(std::move(listener)); }
  void ready();
  /// Returns how often the gradient accumulates in one backward pass before it is complete: once,
  /// or more often when an operator reports each use itself.
  void set_expected_uses(int uses) { expected_uses_ = uses; }

 private:
  class Target;

  void watch();        ///< installs the post-accumulate hook on the compute tensor
  void unwatch();      ///< removes it
  bool has_sink();     ///< calls the sink's maker first
  void accumulated();  ///< called by the hook

  std::vector<std::string> names_;
  std::vector<std::int64_t> shape_;
  model::Init init_;
  double scale_;
  bool decay_;
  bool trainable_ = true;
  bool adjusted_ = false;
  mesh::Layout layout_;
  mesh::Box box_;
  at::Tensor tensor_;
  at::Tensor sink_;
  at::ScalarType gradient_type_ = at::kFloat;
  at::Device device_ = at::kCPU;
  at::Tensor spare_;  ///< memory of a gradient that was cleared
  std::shared_ptr<ops::GradientSink> target_;
  std::function<void()> make_sink_;
  bool sink_written_ = false;  ///< the sink holds a gradient of this step
  int expected_uses_ = 1;
  int uses_ = 0;
  WeightGradients* late_ = nullptr;
  int pending_ = 0;         ///< products that were put off
  bool ready_due_ = false;  ///< but for these products the gradient is complete
  std::vector<Listener> listeners_;
};

}  // namespace shoal::nn
