#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/model/kept_activations.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/recipe/parse.h"
#include "tests/parallel/small_transformers.h"

// Gradients of a divided transformer against those of one rank.
namespace shoal::parallel {

using plan::Degrees;

inline nn::Context context_of(const BatchShare& share, const Data& part, std::int64_t first) {
  nn::Context context;
  context.key = Key(9);
  context.samples = at::arange(first, first + part.inputs.size(0), at::kLong);
  context.labels = part.labels;
  context.loss_scale = 1.0 / 50;
  context.stream = share.stream(part.inputs);
  return context;
}

struct Gradients {
  double loss = 0;
  std::map<std::string, at::Tensor> of;
};

inline Gradients reference(const ModelSpec& spec, const Data& all) {
  const auto model = nn::make_model(spec);
  model->materialize(at::kDouble);
  fill(*model);
  const at::Tensor loss = (*model)(all.inputs, context_of({}, all, 0));
  loss.backward();
  Gradients result{loss.item<double>(), {}};
  for (const auto& parameter : model->parameters())
    result.of[parameter->name()] = parameter->gradient().clone();
  return result;
}

inline void in_double(nn::Model& model) {
  for (const auto& parameter : model.parameters()) parameter->set_types(at::kDouble, at::kDouble);
}

struct Case {
  ModelSpec spec;
  Degrees degrees;
  std::int64_t samples;  ///< of all data-parallel ranks
  std::int64_t columns = 12;
  model::Keep keep = model::Keep::kEverything;
  std::vector<std::string> recipe = {};
};

/// Runs this rank's samples of `all` forward and backward, and returns its part of the loss.
inline double run_share(nn::Model& model, GradientReduction& reduction, const BatchShare& share,
                        const Data& all) {
  const std::int64_t count = all.inputs.size(0) / share.ranks();
  const std::int64_t first = share.rank() * count;
  const Data own{all.inputs.narrow(0, first, count), all.labels.narrow(0, first, count)};
  reduction.begin(0, 1);
  const at::Tensor loss = model(own.inputs, context_of(share, own, first));
  loss.backward();
  reduction.finish();
  return loss.item<double>();
}

/// Compares loss and gradients of a mesh with those of one rank.
inline void check_gradients(const Case& c) {
  const Data all = data(c.samples, c.columns);
  const Gradients expected = reference(c.spec, all);
  const Recipe recipe = parse_recipe(c.recipe);
  comm::run_on_threads(
      {.size = static_cast<int>(c.degrees.ranks()),
       .arena = false,
       .timeout = std::chrono::seconds(30)},
      [&](const comm::Group& world) {
        const mesh::Mesh mesh(world, c.degrees);
        const BatchShare share(mesh);
        const auto model = nn::make_model(c.spec);
        const std::vector<model::Keep> kept(static_cast<std::size_t>(c.spec.layers), c.keep);
        Applied applied =
            apply(*model, mesh, {.recipe = recipe, .set_types = in_double, .kept = kept});
        fill(*model);
        reduce_gradients(applied, *model, mesh);
        const double loss = run_share(*model, *applied.reduction, share, all);
        EXPECT_NEAR(world.sum(loss), expected.loss, 1e-12);
        double squares = 0;
        for (const auto& parameter : model->parameters()) {
          const at::Tensor whole = expected.of.at(parameter->name());
          const at::Tensor wanted = local_part(whole, parameter->box());
          const double scale = whole.abs().max().item<double>();
          EXPECT_LE((parameter->gradient() - wanted).abs().max().item<double>(), 1e-10 * scale)
              << parameter->name() << " on rank " << world.rank() << " of " << c.spec.name << " "
              << fmt::format("{}", fmt::join(c.recipe, "; "));
        }
        for (const at::Tensor& part :
             counted_parts(applied.reduction->owned(), applied.reduction->gradients()))
          squares += part.square().sum().item<double>();
        double norm = 0;
        for (const auto& [name, gradient] : expected.of)
          norm += gradient.square().sum().item<double>();
        EXPECT_NEAR(world.sum(squares), norm, 1e-10 * norm) << "the norm is a partition";
      });
}

}  // namespace shoal::parallel
