#include <cmath>

#include "shoal/train/run_record.h"
#include "tests/fuzz/fuzz.h"

// What a checkpoint says of its run.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  train::RunRecord record;
  if (!fuzz::accepted([&] { record = train::parse_record(fuzz::text_of(data, size), "file"); }))
    return 0;
  fuzz::must(record.step >= 0 && record.samples >= 0 && record.tokens >= 0,
             "a run goes on where it was");
  fuzz::must(!record.loss_scale ||
                 (std::isfinite(record.loss_scale->scale) && record.loss_scale->good_steps >= 0),
             "a loss scale scales");
  std::string written;
  if (!fuzz::accepted([&] { written = record.to_json(); })) return 0;
  fuzz::must(train::parse_record(written, "file").to_json() == written,
             "a record reads as it is written");
  return 0;
}
