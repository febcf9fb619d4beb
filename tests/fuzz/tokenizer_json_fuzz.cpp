#include <fuzzer/FuzzedDataProvider.h>

#include "shoal/data/hugging_face_tokenizer.h"
#include "tests/data/hugging_face_files.h"
#include "tests/fuzz/fuzz.h"

// A tokenizer.json: a sound one in which the input changes, inserts or removes bytes behind the
// bytes' entries; and what such a tokenizer makes of a text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  static const std::string sound = [] {
    auto root = data::small_tokenizer_json({{"a", "b"}, {"ab", "c"}});
    // Fewer entries, more inputs a second: bytes without one are a case, too.
    auto& vocabulary = root["model"]["vocab"];
    const auto whole = vocabulary;
    for (const auto& [entry, id] : whole.items())
      if (entry.size() == 1 && (entry < "a" || entry > "f")) vocabulary.erase(entry);
    for (const auto& [entry, id] : whole.items())
      if (entry.size() == 2 && entry != "ab") vocabulary.erase(entry);
    return root.dump();
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
    const auto tokenizer = data::hugging_face_tokenizer({{"tokenizer.json", file}}, "file");
    std::vector<std::uint32_t> ids;
    if (!fuzz::accepted([&] { ids = tokenizer->encode(text); })) return;
    for (const auto id : ids)
      fuzz::must(id < tokenizer->vocab_size(), "every token is in the vocabulary");
    tokenizer->decode(ids);
    const auto again = data::parse_tokenizer(tokenizer->serialize(), "again");
    fuzz::must(again->encode(text) == ids, "the file gives the same tokenizer");
  });
  return 0;
}
