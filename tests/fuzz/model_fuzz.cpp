#include "shoal/model/model_json.h"
#include "tests/fuzz/fuzz.h"

// Descriptions of models: ours, and Hugging Face's config.json.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string text = fuzz::text_of(data, size);
  const auto check = [](const model::ModelSpec& spec) {
    const std::string written = model::to_json(spec);
    fuzz::must(model::to_json(model::from_json(written)) == written,
               "a model reads as it is written");
  };
  fuzz::accepted([&] { check(model::from_json(text)); });
  fuzz::accepted([&] { check(model::from_hugging_face(text)); });
  return 0;
}
