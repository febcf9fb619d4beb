#include "shoal/schedule/schedule_file.h"
#include "tests/fuzz/fuzz.h"

// Pipeline schedules as PyTorch writes them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  schedule::Schedule schedule;
  if (!fuzz::accepted([&] { schedule = schedule::from_csv(fuzz::text_of(data, size), "file"); }))
    return 0;
  fuzz::must(schedule::from_csv(schedule::to_csv(schedule), "file") == schedule,
             "a schedule reads as it is written");
  return 0;
}
