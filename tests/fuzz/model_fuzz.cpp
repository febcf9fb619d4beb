#include "shoal/plan/model_json.h"
#include "tests/fuzz/fuzz.h"

// Descriptions of models: ours, and Hugging Face's config.json.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string text = fuzz::text_of(data, size);
  const auto check = [](const plan::ModelSpec& spec) {
    const std::string written = plan::to_json(spec);
    fuzz::must(plan::to_json(plan::from_json(written)) == written,
               "a model reads as it is written");
  };
  fuzz::accepted([&] { check(plan::from_json(text)); });
  fuzz::accepted([&] { check(plan::from_hugging_face(text)); });
  return 0;
}
