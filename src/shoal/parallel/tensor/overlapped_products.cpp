#include "shoal/parallel/tensor/overlapped_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/matmul.h"
#include "shoal/parallel/tensor/row_messages.h"

namespace shoal::parallel {
namespace {

/// Weights are packed at about this rate, in bytes that are read, beside another rank that packs.
constexpr double kPackedBytesPerSecond = 5e9;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// The shape of a tensor whose rows are those of the whole stream, or this rank's.
std::vector<std::int64_t> shape_with(const at::Tensor& x, const nn::Stream& stream, bool whole,
                                     std::int64_t width) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.at(static_cast<std::size_t>(stream.dim)) = whole ? stream.whole : stream.count;
  shape.back() = width;
  return shape;
}

/// Returns the rows of a gradient, in the type of activations: zeros where nothing depends on it.
at::Tensor gradient_rows(const at::Tensor& given, at::IntArrayRef shape,
                         const at::TensorOptions& options) {
  return rows_of(given.defined() ? given : at::zeros(shape, options)).contiguous();
}

/// dW = dy^T x, in the weight's sink, or in a tensor of its own. Both factors are held, because the
/// sink may run the product later.
at::Tensor weight_gradient(const std::shared_ptr<ops::GradientSink>& sink, const at::Tensor& dy,
                           const at::Tensor& x) {
  const auto write = [dy, x](const at::Tensor& target, bool accumulate) {
    ops::matmul(target, dy.t(), x, accumulate);
  };
  if (sink) return ops::deliver_later(sink, write);
  const at::Tensor fresh = at::empty({dy.size(1), x.size(1)}, dy.options());
  write(fresh, false);
  return fresh;
}

/// Gathers rows that are factors of products with a weight of `type`, and returns them as such:
/// a 16-bit weight meets them rounded to its type. `arrived` gets each part so; it may be empty.
at::Tensor gather_factor(const at::Tensor& own, const comm::Group& group, at::ScalarType type,
                         const OnPart& arrived) {
  if (!ops::is_narrow(type)) return gather_rows(own, group, arrived);
  const at::Tensor factors =
      at::empty({group.size() * own.size(0), own.size(1)}, own.options().dtype(type));
  gather_rows(own, group, [&](int rank, const at::Tensor& part) {
    const at::Tensor place = part_of(factors, rank, group.size());
    place.copy_(ops::factor(part, type));
    if (arrived) arrived(rank, place);
  });
  return factors;
}

/// The data that backward needs of the layers of gathered_products.
struct Sinks {
  std::shared_ptr<ops::GradientSink> weight;
  std::shared_ptr<ops::GradientSink> bias;
};

/// The operands of backward of gathered_products. `saved` has the factor of all rows at 0, and of
/// layer i the weight at 1 + 2 i and the bias behind it, as the inputs of the function stand.
class GatheredBackward {
 public:
  GatheredBackward(const ops::Wanted& wanted, std::vector<Sinks> sinks, comm::Group group,
                   const at::Tensor& x, std::vector<std::vector<std::int64_t>> shapes,
                   at::ScalarType type)
      : wanted_(wanted),
        sinks_(std::move(sinks)),
        group_(std::move(group)),
        own_shape_(x.sizes().vec()),
        shapes_(std::move(shapes)),
        options_(x.options()),
        type_(type) {}

  ops::Tensors operator()(const ops::Tensors& saved, const ops::Tensors& gradients) const {
    ops::Tensors result(1 + 2 * sinks_.size());
    ops::Tensors factors;
    for (std::size_t i = 0; i < sinks_.size(); ++i) {
      const at::Tensor dy = gradient_rows(gradients[i], shapes_[i], options_);
      factors.push_back(ops::factor(dy, type_));
      if (gradients[i].defined() && wanted_.input[2 + 2 * i])
        result[2 + 2 * i] = ops::bias_gradient(sinks_[i].bias, saved[2 + 2 * i], dy);
    }
    const auto weight_gradients = [&] {
      for (std::size_t i = 0; i < sinks_.size(); ++i) {
        if (gradients[i].defined() && wanted_.input[1 + 2 * i])
          result[1 + 2 * i] = weight_gradient(sinks_[i].weight, factors[i], saved[0]);
      }
    };
    if (!wanted_.input[0]) {
      weight_gradients();
      return result;
    }
    // All rows are multiplied at once: the weight gradients give the messages time enough.
    const at::Tensor summand = at::empty({factors[0].size(0), own_shape_.back()}, options_);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      // As autograd adds up what several layers give.
      const at::Tensor of_layer = i == 0 ? summand : at::empty_like(summand);
      ops::matmul(of_layer, factors[i], saved[1 + 2 * i]);
      if (i > 0) summand.add_(of_layer);
    }
    result[0] = sum_rows(summand, group_, {}, weight_gradients).view(own_shape_);
    return result;
  }

 private:
  ops::Wanted wanted_;
  std::vector<Sinks> sinks_;
  comm::Group group_;
  std::vector<std::int64_t> own_shape_;
  std::vector<std::vector<std::int64_t>> shapes_;  ///< of the results
  at::TensorOptions options_;
  at::ScalarType type_;
};

}  // namespace

bool parts_in_order(const nn::Stream& stream, std::int64_t samples, int ranks) {
  return stream.divided() && stream.whole % ranks == 0 && (stream.dim == 0 || samples == 1);
}

bool worth_cutting(const RowLinks& links, const at::Tensor& rows, std::int64_t elements) {
  const double transfer = static_cast<double>(links.ranks.size() - 1) *
                          static_cast<double>(rows.nbytes()) * links.seconds_per_byte;
  const double packing = static_cast<double>(elements) * sizeof(float) / kPackedBytesPerSecond;
  // A part of the transfer is hidden, and all of the packing is to be paid.
  return transfer > 2 * packing;
}

std::vector<at::Tensor> gathered_products(const at::Tensor& x, const std::vector<Layer>& layers,
                                          const RowLinks& links, const nn::Stream& stream,
                                          const std::vector<at::Tensor>& known) {
  const comm::Group& group = links.ranks;
  const at::ScalarType type = layers.at(0).weight.tensor.scalar_type();
  ops::Tensors inputs{x};
  std::vector<Sinks> sinks;
  std::vector<std::vector<std::int64_t>> shapes;
  std::int64_t elements = 0;
  for (const Layer& layer : layers) {
    const at::Tensor& w = layer.weight.tensor;
    SHOAL_USER_CHECK(
        w.dim() == 2 && x.dim() == 3 && x.size(2) == w.size(1) && w.scalar_type() == type,
        "gathered_products", "input [..., {}] times weight [{}, {}]", x.size(-1), w.size(0),
        w.size(1));
    elements += w.numel();
    inputs.push_back(w);
    inputs.push_back(layer.bias.tensor);
    sinks.push_back({layer.weight.sink, layer.bias.sink});
    shapes.push_back(shape_with(x, stream, true, w.size(0)));
  }
  return ops::differentiable(
      "gathered_products", inputs,
      [&](const ops::Wanted& wanted) {
        ops::Tensors outputs;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          outputs.push_back(known.empty() ? at::empty(shapes[i], x.options()) : known[i].detach());
        }
        // Writes the products of some rows to theirs of the results.
        const auto multiply = [&](const at::Tensor& rows, const auto& place) {
          for (std::size_t i = 0; i < layers.size(); ++i) {
            const at::Tensor out = place(rows_of(outputs[i]));
            const at::Tensor& bias = layers[i].bias.tensor;
            if (bias.defined()) out.copy_(ops::summand(bias, x));
            ops::matmul(out, rows, layers[i].weight.tensor.t(), bias.defined());
          }
        };
        const bool cut = known.empty() && worth_cutting(links, x, elements);
        OnPart arrived;
        if (cut) {
          arrived = [&](int rank, const at::Tensor& part) {
            multiply(part, [&](const at::Tensor& all) { return part_of(all, rank, group.size()); });
          };
        }
        const at::Tensor factor = gather_factor(rows_of(x), group, type, arrived);
        if (known.empty() && !cut) multiply(factor, [](const at::Tensor& all) { return all; });
        ops::Tensors saved = inputs;
        bool weights = false;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          weights = weights || wanted.input[1 + 2 * i];
          if (!wanted.input[0]) saved[1 + 2 * i] = at::Tensor();
          if (!wanted.input[2 + 2 * i]) saved[2 + 2 * i] = at::Tensor();
        }
        saved[0] = weights ? factor : at::Tensor();
        return ops::Recorded{outputs, saved,
                             GatheredBackward(wanted, sinks, group, x, shapes, type)};
      },
      ops::Runs::kAlways);
}

at::Tensor summed_product(const at::Tensor& x, const ops::Weight& weight, const RowLinks& links,
                          const nn::Stream& stream, const at::Tensor& known) {
  const at::Tensor& w = weight.tensor;
  SHOAL_USER_CHECK(w.dim() == 2 && x.dim() == 3 && x.size(2) == w.size(1), "summed_product",
                   "input [..., {}] times weight [{}, {}]", x.size(-1), w.size(0), w.size(1));
  const at::ScalarType type = w.scalar_type();
  const int ranks = links.ranks.size();
  const std::vector<std::int64_t> shape = shape_with(x, stream, false, w.size(0));
  return ops::differentiable(
      "summed_product", {x, w},
      [&](const ops::Wanted& wanted) {
        const at::Tensor factor = ops::factor(x.contiguous(), type);
        at::Tensor out;
        if (known.defined()) {
          out = known.detach();
        } else {
          const at::Tensor summand = at::empty({rows_of(x).size(0), w.size(0)}, x.options());
          OnPart make;
          if (worth_cutting(links, part_of(summand, 0, ranks), w.numel())) {
            make = [&](int rank, const at::Tensor& part) {
              ops::matmul(part, part_of(rows_of(factor), rank, ranks), w.t());
            };
          } else {
            ops::matmul(summand, rows_of(factor), w.t());
          }
          out = sum_rows(summand, links.ranks, make).view(shape);
        }
        const ops::Backward backward = [wanted, links, type, shape, sink = weight.sink,
                                        sizes = x.sizes().vec(),
                                        options = x.options()](const ops::Tensors& saved,
                                                               const ops::Tensors& gradients) {
          ops::Tensors result(2);
          const at::Tensor own = gradient_rows(gradients[0], shape, options);
          OnPart arrived;
          if (wanted.input[0]) {
            result[0] = at::empty(sizes, options);
            if (worth_cutting(links, own, saved[1].numel())) {
              arrived = [&](int rank, const at::Tensor& part) {
                ops::matmul(part_of(rows_of(result[0]), rank, links.ranks.size()), part, saved[1]);
              };
            }
          }
          const at::Tensor dy = gather_factor(own, links.ranks, type, arrived);
          if (wanted.input[0] && !arrived) ops::matmul(rows_of(result[0]), dy, saved[1]);
          if (wanted.input[1]) result[1] = weight_gradient(sink, dy, rows_of(saved[0]));
          return result;
        };
        return ops::Recorded{
            {out},
            {wanted.input[1] ? factor : at::Tensor(), wanted.input[0] ? w : at::Tensor()},
            backward};
      },
      ops::Runs::kAlways)[0];
}

}  // namespace shoal::parallel
