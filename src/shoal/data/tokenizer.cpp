#include "shoal/data/tokenizer.h"

#include "shoal/base/check.h"
#include "shoal/data/bpe.h"
#include "shoal/data/file.h"
#include "shoal/data/hugging_face_tokenizer.h"

namespace shoal::data {
namespace {

// The first line of a file: format, version, kind.
constexpr std::string_view kByteFile = "shoal-tokenizer 1 byte\n";
constexpr std::string_view kBpeFile = "shoal-tokenizer 1 bpe\n";
constexpr std::string_view kHuggingFaceFile = "shoal-tokenizer 1 hugging_face\n";

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = static_cast<char>(byte);
  }
  std::string name() const override { return "byte"; }
  std::uint32_t vocab_size() const override { return 257; }
  std::uint32_t end_of_document() const override { return 256; }
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string_view bytes_of(std::uint32_t id) const override {
    SHOAL_USER_CHECK(id < vocab_size(), "decode", "token {} is not in a vocabulary of {}", id,
                     vocab_size());
    return id == end_of_document() ? std::string_view() : std::string_view(bytes_ + id, 1);
  }
  std::string serialize() const override { return std::string(kByteFile); }

 private:
  // All 256 byte values in order: the text of token i is one character of it.
  char bytes_[256];
};

}  // namespace

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::uint32_t> ids;
  encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(const std::vector<std::uint32_t>& ids) const {
  std::string text;
  for (const std::uint32_t id : ids) text += bytes_of(id);
  return text;
}

std::uint32_t Tokenizer::checksum() const { return crc32(serialize()); }

void Tokenizer::save(const std::string& path) const { write_file(path, serialize()); }

bool same_vocabulary(const Tokenizer& first, const Tokenizer& second) {
  bool same = first.vocab_size() == second.vocab_size() &&
              first.end_of_document() == second.end_of_document();
  for (std::uint32_t id = 0; same && id < first.vocab_size(); ++id)
    same = first.bytes_of(id) == second.bytes_of(id);
  return same;
}

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view serialized,
                                                 const std::string& origin) {
  if (serialized == kByteFile) return byte_tokenizer();
  if (serialized.starts_with(kBpeFile))
    return parse_bpe(serialized.substr(kBpeFile.size()), origin);
  if (serialized.starts_with(kHuggingFaceFile))
    return parse_hugging_face_files(serialized.substr(kHuggingFaceFile.size()), origin);
  throw Error(
      ErrorKind::kData, "tokenizer",
      fmt::format(
          "{} is not a tokenizer: it does not begin with `shoal-tokenizer 1 byte`, `... bpe` or "
          "`... hugging_face`",
          origin));
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  return parse_tokenizer(read_file(path), path);
}

std::shared_ptr<const Tokenizer> byte_tokenizer() { return std::make_shared<ByteTokenizer>(); }

}  // namespace shoal::data
