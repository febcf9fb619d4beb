#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "shoal/data/shard.h"
#include "tests/fuzz/fuzz.h"

// A shard of tokens, whose checksums are made right, so that what lies behind them is reached.
namespace shoal::data {
namespace {

std::string shard(FuzzedDataProvider& input) {
  ShardHeader header{};
  std::memcpy(header.magic, "SHOALTOK", 8);
  header.version =
      input.ConsumeIntegralInRange(0, 7) > 0 ? 1 : input.ConsumeIntegral<std::uint32_t>();
  header.token_bytes = input.PickValueInArray<std::uint32_t>({2, 4, 2, 4, 0, 3, 1u << 31});
  const auto number = [&] {
    return input.ConsumeIntegralInRange(0, 3) > 0
               ? input.ConsumeIntegralInRange<std::uint64_t>(0, 8)
               : input.ConsumeIntegral<std::uint64_t>();
  };
  header.tokens = number(), header.documents = number(), header.text_bytes = number();
  std::string body;
  for (std::uint64_t i = 0; i < 2 * (std::min<std::uint64_t>(header.documents, 8) + 1); ++i) {
    const std::uint64_t entry = input.ConsumeIntegralInRange(0, 7) > 0
                                    ? input.ConsumeIntegralInRange<std::uint64_t>(0, 8)
                                    : number();
    body.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  if (input.ConsumeBool())
    body.append(std::min<std::uint64_t>(header.tokens, 8) * header.token_bytes % 64, 'x');
  body += input.ConsumeRemainingBytesAsString();
  header.body_crc32 = crc32(body);
  header.header_crc32 =
      crc32({reinterpret_cast<const char*>(&header), offsetof(ShardHeader, header_crc32)});
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
}

void read(const std::string& bytes) {
  static const int file = memfd_create("shard", MFD_CLOEXEC);
  fuzz::must(ftruncate(file, 0) == 0 &&
                 pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             "a file");
  fuzz::accepted([&] {
    const TokenShard shard("/proc/self/fd/" + std::to_string(file), true);
    const auto starts = shard.document_tokens(), text = shard.document_bytes();
    for (const auto& table : {starts, text})
      fuzz::must(table.size() == shard.header().documents + 1 && table.front() == 0 &&
                     std::is_sorted(table.begin(), table.end()),
                 "documents lie one behind the other");
    std::vector<std::uint32_t> tokens(shard.header().tokens);
    shard.copy(0, tokens);
  });
}

}  // namespace
}  // namespace shoal::data

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  shoal::data::read(input.ConsumeBool() ? shoal::data::shard(input)
                                        : input.ConsumeRemainingBytesAsString());
  return 0;
}
