#include "shoal/checkpoint/format/weight_index.h"
#include "tests/fuzz/fuzz.h"

// model.safetensors.index.json of a folder that somebody else has written: whatever it says, files
// are named beside it and nowhere else.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::accepted([&] {
    for (const std::string& file :
         checkpoint::format::files_of_index(fuzz::text_of(data, size), "file"))
      fuzz::must(!file.empty() && file.find('/') == std::string::npos && file != "..",
                 "a file lies beside its index");
  });
  return 0;
}
