#include "shoal/checkpoint/format/manifest.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/checkpoint/format/value_checksum.h"
#include "tests/fuzz/fuzz.h"

// The manifest of a checkpoint. The checksum over it is made right, so that what lies behind it is
// reached.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  using namespace shoal::checkpoint::format;
  std::string text = fuzz::text_of(data, size);
  Manifest manifest;
  fuzz::accepted([&] { parse_manifest(text, "file"); });
  const bool json = fuzz::accepted([&] {
    auto root = parse_json(text, "file");
    if (!root.is_object()) return;
    root.erase("checksum");
    root["checksum"] = hex(byte_checksum(root.dump()));
    text = root.dump();
  });
  if (!json || !fuzz::accepted([&] { manifest = parse_manifest(text, "file"); })) return 0;
  for (const LogicalTensor& tensor : manifest.tensors)
    for (const Piece& piece : tensor.pieces)
      fuzz::must(piece.file >= 0 && piece.file < static_cast<int>(manifest.files.size()) &&
                     fits(piece.box, tensor.shape),
                 "every piece has its place");
  const std::string written = to_json(manifest);
  Manifest again = parse_manifest(written, "file");
  fuzz::must(to_json(again) == written, "a manifest reads as it is written");
  return 0;
}
