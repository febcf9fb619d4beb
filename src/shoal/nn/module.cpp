#include "shoal/nn/module.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"

namespace shoal::nn {
namespace {

std::string join(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : path + "." + std::string(name);
}

void collect(const Module& module, std::vector<std::shared_ptr<Parameter>>& list) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    // A tied weight is registered twice and must be updated once.
    if (std::find(list.begin(), list.end(), parameter) == list.end()) list.push_back(parameter);
  }
  // Own parameters first, then children in the order of registration: the order of optimizer slices
  // and of checkpoints.
  for (const auto& [name, child] : module.children()) collect(*child, list);
}

/// Returns the part of `path` below a child called `name`, which may contain dots itself: empty for
/// the child, none when the path leads elsewhere.
std::optional<std::string_view> below(std::string_view path, std::string_view name) {
  if (!path.starts_with(name)) return std::nullopt;
  path.remove_prefix(name.size());
  if (path.empty()) return path;
  // "blocks.1" is no parent of "blocks.10".
  if (path.front() != '.') return std::nullopt;
  return path.substr(1);
}

}  // namespace

at::Tensor Module::operator()(const at::Tensor& x, const Context& context) {
  return around_ ? around_(*this, x, context) : direct(x, context);
}

at::Tensor Module::direct(const at::Tensor& x, const Context& context) {
  // Nearly every call: no hooks, no copies of `x`.
  if (pre_.empty() && post_.empty()) return forward(x, context);
  at::Tensor value = x;
  for (const Hook& hook : pre_) {
    if (at::Tensor replaced = hook(*this, value, context); replaced.defined())
      value = std::move(replaced);
  }
  value = forward(value, context);
  for (const Hook& hook : post_) {
    if (at::Tensor replaced = hook(*this, value, context); replaced.defined())
      value = std::move(replaced);
  }
  return value;
}

std::vector<std::shared_ptr<Parameter>> Module::parameters() const {
  std::vector<std::shared_ptr<Parameter>> list;
  collect(*this, list);
  return list;
}

std::shared_ptr<Parameter> Module::find_parameter(std::string_view name) const {
  for (const auto& parameter : parameters()) {
    const auto& names = parameter->names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return parameter;
  }
  return nullptr;
}

Module* Module::find_module(std::string_view path) {
  if (path.empty()) return this;
  for (const auto& [name, child] : children_)
    if (const auto rest = below(path, name)) return child->find_module(*rest);
  return nullptr;
}

void Module::replace_module(std::string_view path, std::shared_ptr<Module> module) {
  for (auto& [name, child] : children_) {
    const auto rest = below(path, name);
    if (!rest) continue;
    if (!rest->empty()) return child->replace_module(*rest, std::move(module));
    // The new module is renamed before its parent learns of it: its parameters then have the names
    // of the old one.
    child = std::move(module);
    child->rename(join(path_, name));
    on_replaced(name, child);
    return;
  }
  throw Error(ErrorKind::kUsage, "replace_module",
              fmt::format("'{}' has no module '{}'", path_, path));
}

void Module::materialize(std::optional<at::ScalarType> type) {
  for (const auto& parameter : parameters()) {
    if (type && !parameter->materialized()) parameter->set_types(*type, *type);
    parameter->materialize();
  }
}

void Module::reset_parameters(Key key) {
  for (const auto& parameter : parameters()) parameter->reset(key);
}

void Module::clear_gradients() {
  for (const auto& parameter : parameters()) parameter->clear_gradient();
}

std::shared_ptr<Parameter> Module::parameter(std::string name, std::vector<std::int64_t> shape,
                                             model::Init init, double scale, bool decay) {
  auto parameter = std::make_shared<Parameter>(std::move(shape), init, scale, decay);
  tie(std::move(name), parameter);
  return parameter;
}

void Module::tie(std::string name, std::shared_ptr<Parameter> parameter) {
  parameter->add_name(join(path_, name));
  parameters_.emplace_back(std::move(name), std::move(parameter));
}

void Module::take_over(const Module& original) {
  // The path comes with the names, so that adopting this module renames nothing.
  path_ = original.path_;
  parameters_ = original.parameters_;
}

void Module::adopt(std::string name, std::shared_ptr<Module> module) {
  SHOAL_CHECK(find_module(name) == nullptr, "'{}' has a module '{}' already", path_, name);
  module->rename(join(path_, name));
  children_.emplace_back(std::move(name), std::move(module));
}

void Module::drop_child(std::string_view name) {
  std::erase_if(children_, [&](const auto& child) { return child.first == name; });
}

void Module::rename(const std::string& path) {
  // A module is built before it is adopted, so it learns its full names only now; a tied parameter
  // keeps its other names.
  for (const auto& [name, parameter] : parameters_)
    parameter->rename(join(path_, name), join(path, name));
  path_ = path;
  for (const auto& [name, child] : children_) child->rename(join(path, name));
}

at::Tensor Model::forward(const at::Tensor& x, const Context& context) {
  SHOAL_USER_CHECK(whole_, "model",
                   "this rank holds {} units, not the whole model: a pipeline must run them",
                   units_.size());
  at::Tensor value = x;
  // Through the call operator, where sharding and recomputation have their hooks.
  for (const auto& unit : units_) {
    const ScopedUnit span(unit->path().c_str());
    value = (*unit)(value, context);
  }
  return value;
}

void Model::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (unit_names_[i] == name) units_[i] = module;
}

void Model::keep_units(const std::vector<std::size_t>& kept) {
  for (const auto& parameter : parameters()) {
    SHOAL_USER_CHECK(!parameter->materialized(), "keep_units",
                     "{} has memory already: units are dropped before materialize()",
                     parameter->name());
  }
  std::vector<std::shared_ptr<Module>> units;
  std::vector<std::string> names;
  for (const std::size_t index : kept) {
    SHOAL_USER_CHECK(index < units_.size(), "keep_units", "there is no unit {} of {}", index,
                     units_.size());
    units.push_back(units_[index]);
    names.push_back(unit_names_[index]);
  }
  for (const std::string& name : unit_names_)
    if (std::find(names.begin(), names.end(), name) == names.end()) drop_child(name);
  whole_ = whole_ && units.size() == units_.size();
  units_ = std::move(units);
  unit_names_ = std::move(names);
}

void Model::unit(std::string name, std::shared_ptr<Module> module) {
  adopt(name, module);
  units_.push_back(std::move(module));
  unit_names_.push_back(std::move(name));
}

}  // namespace shoal::nn
