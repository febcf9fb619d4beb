#include <fuzzer/FuzzedDataProvider.h>

#include "shoal/data/bpe.h"
#include "shoal/data/tokenizer.h"
#include "tests/fuzz/fuzz.h"

// The file of a tokenizer: a sound one in which the input changes, inserts or removes bytes; and
// what such a tokenizer makes of a text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  static const std::string sound = [] {
    data::PretokenCounts counts;
    data::count_pretokens(
        "a shoal of fish has no leader and moves as one body; a shoal of fish has no leader",
        counts);
    return data::train_bpe(counts, 300)->serialize();
  }();
  FuzzedDataProvider input(data, size);
  const std::string text = input.ConsumeRandomLengthString(64);
  std::string file = sound;
  while (input.remaining_bytes() > 0) {
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, file.size());
    const auto gone = input.ConsumeIntegralInRange<std::size_t>(0, 64);
    file.replace(at, gone, input.ConsumeRandomLengthString(16));
  }
  fuzz::accepted([&] {
    const auto tokenizer = data::parse_tokenizer(file, "file");
    std::vector<std::uint32_t> ids;
    if (!fuzz::accepted([&] { ids = tokenizer->encode(text); })) return;
    for (const auto id : ids)
      fuzz::must(id < tokenizer->vocab_size(), "every token is in the vocabulary");
    fuzz::must(tokenizer->decode(ids) == text, "a text survives its tokens");
  });
  return 0;
}
