#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/nn/context.h"
#include "shoal/nn/parameter.h"

namespace shoal::nn {

/// Marks the constructor of a module that is put in the place of another and holds its parameters.
struct Replacement {};

/// Base of every layer and model: a tensor in, a tensor out, with named children and parameters.
///
/// Construction takes no memory: parameters lie on the meta device until `materialize`. Local sizes
/// come from the tensors that a module holds, never from the configuration, so that a sharded
/// module computes with the same code. A module knows no rank, group or axis.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Runs the function of `set_around`, if there is one, else `direct`.
  at::Tensor operator()(const at::Tensor& x, const Context& context);
  /// Runs pre-hooks, forward, post-hooks.
  at::Tensor direct(const at::Tensor& x, const Context& context);

  /// A pre-hook may replace the input, a post-hook the output, by returning a defined tensor. They
  /// run in the order of registration.
  using Hook = std::function<at::Tensor(Module&, const at::Tensor&, const Context&)>;
  void on_pre_forward(Hook hook) { pre_.push_back(std::move(hook)); }
  void on_post_forward(Hook hook) { post_.push_back(std::move(hook)); }

  /// `around` runs instead of `direct`. It calls `direct` itself: in the forward pass, and again in
  /// the backward pass when activations are recomputed. A module has at most one; null removes it.
  using Around = std::function<at::Tensor(Module&, const at::Tensor&, const Context&)>;
  void set_around(Around around) { around_ = std::move(around); }

  /// Returns true when calling the module runs only its forward: a parent may then use a fused
  /// operator instead.
  bool plain() const { return pre_.empty() && post_.empty() && !around_; }

  /// Returns the dotted name from the root ("blocks.0.attention"); empty for the root.
  const std::string& path() const { return path_; }

  /// Lists each parameter once, even if it has several names, in registration order: the order in
  /// which units run.
  std::vector<std::shared_ptr<Parameter>> parameters() const;
  /// Returns the parameters that are registered at this module itself, under their local names.
  const std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>& own_parameters() const {
    return parameters_;
  }
  /// Finds a parameter by any of its names; null when there is none.
  std::shared_ptr<Parameter> find_parameter(std::string_view name) const;

  const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children() const {
    return children_;
  }
  /// Finds a module by its dotted path below this one; null when there is none.
  Module* find_module(std::string_view path);
  /// Puts a module with the same interface and parameter names in the place of the child at `path`
  /// (vocabulary-parallel, expert-parallel ...).
  void replace_module(std::string_view path, std::shared_ptr<Module> module);

  /// Takes memory for every parameter that has none yet. `type` sets the type of these parameters
  /// and their gradients; without it each keeps its own (float32 by default).
  void materialize(std::optional<at::ScalarType> type = {});
  /// Initialises the weights from `key`: values are functions of names and global indices, the same
  /// for any number of ranks and any layout.
  void reset_parameters(Key key);
  void clear_gradients();

 protected:
  virtual at::Tensor forward(const at::Tensor& x, const Context& context) = 0;

  std::shared_ptr<Parameter> parameter(std::string name, std::vector<std::int64_t> shape,
                                       model::Init init, double scale = 0, bool decay = false);
  /// Registers a parameter that another module owns under a further name: tied weights.
  void tie(std::string name, std::shared_ptr<Parameter> parameter);
  /// Registers the own parameters of `original`, whose place this module will take, under their
  /// names: replace_module follows.
  void take_over(const Module& original);

  template <class M, class... Arguments>
  std::shared_ptr<M> child(std::string name, Arguments&&... arguments) {
    auto module = std::make_shared<M>(std::forward<Arguments>(arguments)...);
    adopt(std::move(name), module);
    return module;
  }
  void adopt(std::string name, std::shared_ptr<Module> module);
  /// Removes the child registered as `name`; the other children keep their names.
  void drop_child(std::string_view name);
  /// Is called when the child registered as `name` was replaced, so that typed pointers to it can
  /// be renewed.
  virtual void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {}

 private:
  void rename(const std::string& path);

  std::string path_;
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> parameters_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<Hook> pre_;
  std::vector<Hook> post_;
  Around around_;
};

/// A model is a sequence of units (embedding, blocks, head) through which one tensor flows;
/// pipeline stages, sharding units and checkpointed blocks are cuts of this list. The last unit
/// returns the scaled loss (a scalar) when the context has labels, else logits [B, T, V].
class Model : public Module {
 public:
  explicit Model(model::ModelSpec spec) : spec_(std::move(spec)) {}
  const model::ModelSpec& spec() const { return spec_; }
  const std::vector<std::shared_ptr<Module>>& units() const { return units_; }
  /// Keeps the units at these indices (ascending) and drops the others, with the parameters that
  /// only they use; names stay those of the whole model. A model that has lost units is run by a
  /// pipeline, and refuses to be called itself. Throws Error(usage) when a parameter has memory
  /// already, as dropping units would come too late to save it.
  void keep_units(const std::vector<std::size_t>& kept);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;
  /// Registers the next unit under `name`.
  void unit(std::string name, std::shared_ptr<Module> module);

 private:
  model::ModelSpec spec_;
  std::vector<std::shared_ptr<Module>> units_;
  std::vector<std::string> unit_names_;
  bool whole_ = true;  ///< no unit was dropped
};

/// The loss that a model's head computes from `Context::labels`. Each is a sum over labels
/// (elements of the target) times the context's scale.
enum class Loss { kCrossEntropy, kSquaredError, kAbsoluteError };

/// Builds the model that `spec` describes, on the meta device. Throws Error(config) when `spec` is
/// not valid, or for a loss that its family does not have.
std::shared_ptr<Model> make_model(const model::ModelSpec& spec, Loss loss = Loss::kCrossEntropy);

}  // namespace shoal::nn
