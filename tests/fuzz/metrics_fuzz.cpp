#include "shoal/train/config/metrics.h"
#include "tests/fuzz/fuzz.h"

// A line of metrics.jsonl, as a run that is resumed finds it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  train::StepMetrics metrics;
  std::string written;
  const bool read =
      fuzz::accepted([&] { metrics = train::parse_metrics(fuzz::text_of(data, size)); });
  if (!read || !fuzz::accepted([&] { written = train::to_json(metrics); })) return 0;
  fuzz::must(train::to_json(train::parse_metrics(written)) == written,
             "metrics read as they are written");
  return 0;
}
