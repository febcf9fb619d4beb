#include "shoal/base/check.h"
#include "shoal/nn/perceptron.h"
#include "shoal/nn/transformer.h"

namespace shoal::nn {

std::shared_ptr<Model> make_model(const model::ModelSpec& spec, Loss loss) {
  model::validate(spec);
  if (spec.family == model::Family::kMlp) return std::make_shared<Perceptron>(spec, loss);
  if (loss != Loss::kCrossEntropy) {
    throw Error(ErrorKind::kConfig, "model",
                "a transformer predicts tokens: its loss is cross-entropy");
  }
  return std::make_shared<Transformer>(spec);
}

}  // namespace shoal::nn
