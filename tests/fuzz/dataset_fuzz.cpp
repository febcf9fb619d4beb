#include "shoal/data/headers.h"
#include "shoal/data/manifest.h"
#include "tests/fuzz/fuzz.h"

// The manifest of a dataset, and lists of pinned files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string text = fuzz::text_of(data, size);
  fuzz::accepted([&] { data::parse_pinned_list(text); });
  data::Manifest manifest;
  if (!fuzz::accepted([&] { manifest = data::parse_manifest(text, "file"); })) return 0;
  const std::string written = data::to_json(manifest);
  fuzz::must(data::to_json(data::parse_manifest(written, "file")) == written,
             "a manifest reads as it is written");
  return 0;
}
