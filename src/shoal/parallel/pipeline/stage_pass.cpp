#include "shoal/parallel/pipeline/stage_pass.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/span_recorder.h"
#include "shoal/nn/weight_gradients.h"

namespace shoal::parallel {
namespace {

using torch::autograd::Edge;

/// Lets the parameters of a stage put their products off while it lives.
class PutOff {
 public:
  PutOff(const Stage& stage, nn::WeightGradients& list) : parameters_(stage.parameters()) {
    for (const auto& parameter : parameters_) parameter->put_off(&list);
  }
  ~PutOff() {
    for (const auto& parameter : parameters_) parameter->put_off(nullptr);
  }
  PutOff(const PutOff&) = delete;
  PutOff& operator=(const PutOff&) = delete;

 private:
  std::vector<std::shared_ptr<nn::Parameter>> parameters_;
};

}  // namespace

struct StagePass::Graph {
  Edge output;  ///< invalid where the output needs no gradient
  torch::autograd::edge_list losses;
  torch::autograd::variable_list loss_gradients;
  nn::WeightGradients late;

  /// Adds a loss to the roots of backward.
  void add_loss(const at::Tensor& loss, double gradient) {
    if (!loss.requires_grad()) return;
    losses.push_back(torch::autograd::impl::gradient_edge(loss));
    loss_gradients.push_back(at::full_like(loss.detach(), gradient));
  }

  /// Runs autograd from all roots at once, so that what several of them reach is run once. The
  /// graph is freed on the way.
  void run(const at::Tensor& gradient) {
    auto roots = std::exchange(losses, {});
    auto gradients = std::exchange(loss_gradients, {});
    if (gradient.defined() && output.is_valid()) {
      roots.push_back(output);
      gradients.push_back(gradient);
    }
    output = {};
    if (roots.empty()) return;  // nothing here is trained
    torch::autograd::Engine::get_default_engine().execute(
        roots, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  }
};

StagePass::StagePass(const Stage& stage, double loss_gradient, std::function<void()> between_units)
    : stage_(stage),
      loss_gradient_(loss_gradient),
      between_units_(std::move(between_units)),
      graph_(std::make_unique<Graph>()) {}

StagePass::~StagePass() = default;

at::Tensor StagePass::forward(const at::Tensor& x, nn::Context context, bool input_wanted) {
  nn::LossSink extra;
  context.extra_losses = &extra;
  // A leaf of its own: backward ends here, and leaves the gradient in it.
  input_ = input_wanted ? x.detach().set_requires_grad(true) : x;
  at::Tensor value = input_;
  for (const auto& unit : stage_.units) {
    // Where the unit is the whole model, which has no path, its own units open spans.
    std::optional<ScopedUnit> span;
    if (!unit->path().empty()) span.emplace(unit->path().c_str());
    value = (*unit)(value, context);
    span.reset();
    if (between_units_) between_units_();
  }
  const bool is_loss = context.labels.defined() && value.dim() == 0;
  if (is_loss) {
    graph_->add_loss(value, loss_gradient_);
  } else if (value.requires_grad()) {
    graph_->output = torch::autograd::impl::gradient_edge(value);
  }
  for (const at::Tensor& loss : extra.losses()) {
    extra_ += loss.item<double>();
    graph_->add_loss(loss, loss_gradient_);
  }
  return value.detach();
}

at::Tensor StagePass::backward(const at::Tensor& gradient) {
  graph_->run(gradient);
  const at::Tensor input = std::exchange(input_, {});
  if (!input.requires_grad()) return {};
  at::Tensor result = std::move(input.mutable_grad());
  return result.defined() ? result : at::zeros_like(input.detach());
}

at::Tensor StagePass::input_gradient(const at::Tensor& gradient) {
  const PutOff put_off(stage_, graph_->late);
  return backward(gradient);
}

void StagePass::weight_gradient() { graph_->late.run(); }

}  // namespace shoal::parallel
