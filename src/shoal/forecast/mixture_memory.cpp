#include "shoal/forecast/mixture_memory.h"

#include <algorithm>

#include "shoal/model/mixture_tensors.h"

namespace shoal::forecast {

double mixture_backward(const ModelSpec& spec, const MicroBatch& batch, Keep keep, Weights weights,
                        bool in_place) {
  const model::MixtureTensors t(spec, batch);
  // Kept results of products stay until the block has run; all else is freed on the way.
  const bool frees_products = keep != Keep::kProducts;
  const double activated = t.hidden / batch.product_bytes * batch.element_bytes;
  const double shared_activated = t.shared_hidden / batch.product_bytes * batch.element_bytes;
  // Shared experts ran last and come first: the gradients of their activation and of its input.
  const double shared = shared_activated + t.shared_wide;
  // Then the routed ones, beside the gradient of the norm's result that the shared ones made.
  const double before = t.shared_result - t.shared_hidden - (frees_products ? t.shared_wide : 0);
  // Sums of the results by token are taken apart: a gradient of each row, which travels to its
  // expert, where it is put in order; read in place it is put in order at once.
  const double returned = t.travels || frees_products ? t.sent : 0;
  const double there = (in_place ? 1 : 2) * t.results;
  const double apart = t.travels ? there + t.sent - returned : t.sent;
  const double down = t.results + activated - returned;
  // The last product's factors, its input and the gradient of its result, are free by then.
  const double waiting = weights == Weights::kLater ? t.hidden + t.results : 0;
  const double gate = activated + t.wide - t.hidden - returned + waiting;
  return std::max(shared, before + std::max({apart, down, gate}));
}

double mixture_factors(const ModelSpec& spec, const MicroBatch& batch) {
  const model::MixtureTensors t(spec, batch);
  const double product = batch.product_bytes / batch.element_bytes;
  const double shared = t.copies + t.shared_hidden + product * (t.shared_wide + t.shared_result);
  return t.input + t.logits + t.arrived + t.hidden + product * (t.wide + t.results) + shared;
}

}  // namespace shoal::forecast
