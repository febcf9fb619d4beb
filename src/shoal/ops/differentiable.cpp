#include "shoal/ops/differentiable.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/base/span_recorder.h"
#include "shoal/comm/allocator.h"

namespace shoal::ops {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// Returns true for an operator that goes over all its operands and results once. Others multiply
/// matrices, or read some rows of a table.
bool goes_over_operands(std::string_view name) {
  constexpr std::array<std::string_view, 10> kNames{
      "activate", "add_rows", "combine_rows", "cross_entropy", "dropout",
      "gated",    "norm",     "reordered",    "rotary",        "squared_error"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

class Operator final : public Node {
 public:
  Operator(const char* name, Runs runs, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), name_(name), runs_(runs) {
    if (const SpanRecorder* recorder = SpanRecorder::recording()) unit_ = recorder->unit();
  }

  std::string name() const override { return std::string("shoal::") + name_; }

  void keep(const Recorded& recorded) {
    backward_ = recorded.backward;
    saved_.reserve(recorded.saved.size());
    for (const at::Tensor& tensor : recorded.saved) {
      // What stays until backward is counted as activations; it was allocated before anybody knew
      // that it would stay.
      comm::retag(tensor, MemoryCategory::kTemporary, MemoryCategory::kActivations);
      // A node that kept its own output as a plain tensor would own itself and never be freed. A
      // SavedVariable that knows that it is an output keeps no owning reference to the node.
      const bool is_output =
          std::any_of(recorded.outputs.begin(), recorded.outputs.end(),
                      [&](const at::Tensor& output) { return output.is_same(tensor); });
      saved_.emplace_back(tensor, is_output);
    }
  }

  // Autograd calls it when the graph is not retained, so that activations are freed as backward
  // goes; the lock is against another thread that still runs apply().
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved_.clear();
    backward_ = nullptr;
  }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    // With create_graph autograd runs backward with recording. Our backward functions compute
    // without it, so second derivatives would be silently wrong.
    SHOAL_USER_CHECK(!at::GradMode::is_enabled(), name_,
                     "second derivatives (create_graph) are not supported");
    SHOAL_USER_CHECK(backward_ != nullptr, name_,
                     "backward ran already and freed what forward saved");
    // No output was used: zero gradients for all inputs, and nothing is computed. Outputs of which
    // some are used come with undefined gradients for the rest.
    const bool any = std::any_of(gradients.begin(), gradients.end(),
                                 [](const at::Tensor& g) { return g.defined(); });
    if (!any && runs_ == Runs::kWithGradients) return Tensors(num_outputs());
    if (SpanRecorder* recorder = SpanRecorder::recording()) recorder->reach_backward(unit_);
    const ScopedSpan span(SpanKind::kOperator, name_, "backward");
    Tensors saved;
    saved.reserve(saved_.size());
    for (const SavedVariable& variable : saved_)
      // unpack() also compares versions: it throws when a saved tensor was changed in place since.
      saved.push_back(variable.unpack(shared_from_this()));
    Tensors result = backward_(saved, gradients);
    SHOAL_CHECK(result.size() == num_outputs(), "{}: {} gradients for {} inputs", name_,
                result.size(), num_outputs());
    if (span.recorded() && goes_over_operands(name_))
      span.work(0, bytes_of(saved) + bytes_of(gradients) + bytes_of(result));
    return result;
  }

 private:
  const char* name_;
  Runs runs_;
  const char* unit_ = nullptr;  ///< of the model, in which forward was recorded
  std::vector<SavedVariable> saved_;
  Backward backward_;
};

}  // namespace

Tensors differentiable(const char* name, const Tensors& inputs,
                       const std::function<Recorded(const Wanted&)>& forward, Runs runs) {
  Wanted wanted;
  wanted.input.resize(inputs.size());
  if (at::GradMode::is_enabled()) {
    // Where autograd does not record (evaluation, a recomputed block's first pass) nothing is
    // wanted, and forward may skip what only backward needs.
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      wanted.input[i] = inputs[i].defined() && inputs[i].requires_grad();
      wanted.any = wanted.any || wanted.input[i];
    }
  }
  Recorded recorded;
  {
    // What forward calls must not make nodes of its own: this one stands for all of it.
    const c10::AutoGradMode not_recording(false);
    const ScopedSpan span(SpanKind::kOperator, name);
    recorded = forward(wanted);
    if (span.recorded() && goes_over_operands(name))
      span.work(0, bytes_of(inputs) + bytes_of(recorded.outputs));
  }
  if (!wanted.any) return std::move(recorded.outputs);

  // Edges to what made the inputs, in their order; an undefined input has an empty edge, and its
  // gradient is dropped.
  const auto node =
      std::make_shared<Operator>(name, runs, torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : recorded.outputs) {
    if (output.defined() && output.is_floating_point()) {
      torch::autograd::impl::set_gradient_edge(output, {node, node->add_input_metadata(output)});
    } else {
      // An output without a gradient still takes its number, so that gradients[i] stays the
      // gradient of output i.
      node->add_input_metadata(Node::undefined_input());
    }
  }
  // Last: a saved output must have its gradient edge by now, or it would be taken for a leaf and
  // kept with an owning reference to itself.
  node->keep(recorded);
  return std::move(recorded.outputs);
}

}  // namespace shoal::ops
