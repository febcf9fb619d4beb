#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz.h"

// A parser with a mistake: it believes a length that stands in its input, if the right word stands
// before it. The fuzzer has to find it; a ctest entry sees that it does.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 5 || std::memcmp(data, "LEN", 3) != 0) return 0;
  const std::vector<std::uint8_t> body(data + 4, data + size);
  volatile unsigned sum = 0;
  for (unsigned i = 0; i < data[3]; ++i) sum = sum + body.data()[i];
  return 0;
}
