#include "shoal/collective/flight/flight_files.h"
#include "tests/fuzz/fuzz.h"

// Files that ranks left in the folder of a run, which others may have written to.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string text = fuzz::text_of(data, size), half = text.substr(0, size / 2);
  const std::string merged = collective::merge_flights({text, half}, "r");
  fuzz::must(collective::merge_flights({merged}, "r").size() <= merged.size() * 2 + 1000,
             "what was merged is read again");
  return 0;
}
