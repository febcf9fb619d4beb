#include <algorithm>

#include "shoal/checkpoint/format/safetensors.h"
#include "tests/fuzz/fuzz.h"

// The header of a safetensors file. The first byte of the input says whether its length stands in
// front or comes from the input, the second how much data follows.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  using namespace shoal::checkpoint::format;
  if (size < 2) return 0;
  const bool framed = (data[0] & 1) == 0;
  const std::int64_t follow = data[1];
  std::string bytes = fuzz::text_of(data + 2, size - 2);
  if (framed)
    bytes = std::string(1, static_cast<char>(bytes.size())) + static_cast<char>(bytes.size() >> 8) +
            std::string(6, '\0') + bytes;
  const std::int64_t file_bytes = static_cast<std::int64_t>(bytes.size()) + follow;
  Header header;
  if (!fuzz::accepted([&] { header = parse_header(bytes, file_bytes, "file"); })) return 0;
  std::int64_t at = header.data_begin;
  for (const Entry& entry : header.entries) {
    fuzz::must(entry.offset == at && entry.bytes() >= 0 && entry.bytes() <= file_bytes - at,
               "every tensor lies in the file, behind the one before");
    at += entry.bytes();
  }
  fuzz::must(at == file_bytes, "no byte is left over");
  std::vector<Entry> entries = header.entries;
  const std::string rendered = render_header(entries, header.metadata);
  const Header again = parse_header(
      rendered, static_cast<std::int64_t>(rendered.size()) + file_bytes - header.data_begin,
      "file");
  const bool same = std::equal(entries.begin(), entries.end(), again.entries.begin(),
                               again.entries.end(), [](const Entry& a, const Entry& b) {
                                 return a.name == b.name && a.type == b.type &&
                                        a.shape == b.shape && a.offset == b.offset;
                               });
  fuzz::must(same && again.metadata == header.metadata, "a header reads as it is written");
  return 0;
}
