#include "shoal/data/shard.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "shoal/base/check.h"

namespace shoal::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian and mapped as they are");

constexpr char kMagic[] = "SHOALTOK";
constexpr std::uint32_t kVersion = 1;

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::uint32_t checksum(const ShardHeader& header) {
  return crc32({reinterpret_cast<const char*>(&header), offsetof(ShardHeader, header_crc32)});
}

template <class Stored, class Out>
void copy_tokens(const char* from, std::uint64_t start, std::span<Out> out) {
  const auto* tokens = reinterpret_cast<const Stored*>(from) + start;
  std::copy(tokens, tokens + out.size(), out.begin());
}

}  // namespace

void ShardWriter::add(std::span<const std::uint32_t> tokens, std::uint64_t text_bytes) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  document_tokens_.push_back(tokens_.size());
  document_bytes_.push_back(document_bytes_.back() + text_bytes);
}

ShardHeader ShardWriter::write(const std::string& path, std::uint32_t token_bytes,
                               std::uint64_t fingerprint, std::uint32_t tokenizer_crc32) {
  SHOAL_CHECK(!empty() && (token_bytes == 2 || token_bytes == 4), "{} documents of {}-byte tokens",
              document_tokens_.size() - 1, token_bytes);
  // Tables of 8-byte numbers stand before the tokens: behind the header of 64 bytes everything is
  // aligned where it is mapped.
  std::string body(bytes_of(document_tokens_));
  body += bytes_of(document_bytes_);
  if (token_bytes == 2) {
    const std::vector<std::uint16_t> narrow(tokens_.begin(), tokens_.end());
    body += bytes_of(narrow);
  } else {
    body += bytes_of(tokens_);
  }
  ShardHeader header{};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  header.version = kVersion;
  header.token_bytes = token_bytes;
  header.tokens = tokens_.size();
  header.documents = document_tokens_.size() - 1;
  header.text_bytes = document_bytes_.back();
  header.fingerprint = fingerprint;
  header.tokenizer_crc32 = tokenizer_crc32;
  header.body_crc32 = crc32(body);
  // Last: it covers every field before it.
  header.header_crc32 = checksum(header);
  write_file(path, std::string(reinterpret_cast<const char*>(&header), sizeof header) + body);
  *this = ShardWriter();
  return header;
}

TokenShard::TokenShard(const std::string& path, bool check_body) : path_(path), file_(path) {
  const std::string_view bytes = file_.bytes();
  if (bytes.size() < sizeof header_)
    damaged(fmt::format("{} bytes are less than a header of {}", bytes.size(), sizeof header_));
  std::memcpy(&header_, bytes.data(), sizeof header_);
  check_header();
  if (check_body && crc32(bytes.substr(sizeof header_)) != header_.body_crc32)
    damaged("the checksum of its tokens is wrong");
  // Views into the mapped file; nothing is read until somebody asks for tokens.
  const auto* table = reinterpret_cast<const std::uint64_t*>(bytes.data() + sizeof header_);
  document_tokens_ = {table, header_.documents + 1};
  document_bytes_ = {table + header_.documents + 1, header_.documents + 1};
  tokens_ = reinterpret_cast<const char*>(table + 2 * (header_.documents + 1));
  check_documents();
}

void TokenShard::check_header() const {
  if (std::memcmp(header_.magic, kMagic, sizeof header_.magic) != 0)
    damaged("it does not begin with SHOALTOK: not a token shard");
  if (header_.version != kVersion)
    damaged(fmt::format("format version {}; this program reads {}", header_.version, kVersion));
  // The header is trusted only from here on: its counts decide what is read.
  if (checksum(header_) != header_.header_crc32) damaged("the checksum of its header is wrong");
  if (header_.token_bytes != 2 && header_.token_bytes != 4)
    damaged(fmt::format("tokens of {} bytes", header_.token_bytes));
  // In 128 bits: counts of a damaged file must not overflow into a size that fits.
  const auto expected =
      sizeof header_ +
      static_cast<unsigned __int128>(header_.documents + 1) * 2 * sizeof(std::uint64_t) +
      static_cast<unsigned __int128>(header_.tokens) * header_.token_bytes;
  if (header_.documents == ~std::uint64_t{0} || expected != file_.bytes().size()) {
    damaged(fmt::format("it has {} bytes where its header promises {}", file_.bytes().size(),
                        static_cast<std::uint64_t>(expected)));
  }
}

void TokenShard::check_documents() const {
  const auto ordered = [](std::span<const std::uint64_t> table, std::uint64_t last) {
    return table.front() == 0 && table.back() == last && std::is_sorted(table.begin(), table.end());
  };
  if (!ordered(document_tokens_, header_.tokens) || !ordered(document_bytes_, header_.text_bytes))
    damaged("its table of documents is not in order");
}

void TokenShard::damaged(const std::string& what) const {
  throw Error(ErrorKind::kData, "dataset", fmt::format("{} is damaged: {}", path_, what))
      .hint(
          "delete it and manifest.json and run `shoal data prepare` again: it makes only what is "
          "missing");
}

void TokenShard::copy(std::uint64_t start, std::span<std::int64_t> out) const {
  SHOAL_CHECK(start <= header_.tokens && out.size() <= header_.tokens - start,
              "tokens {} + {} of {}", start, out.size(), header_.tokens);
  header_.token_bytes == 2 ? copy_tokens<std::uint16_t>(tokens_, start, out)
                           : copy_tokens<std::uint32_t>(tokens_, start, out);
}

void TokenShard::copy(std::uint64_t start, std::span<std::uint32_t> out) const {
  SHOAL_CHECK(start <= header_.tokens && out.size() <= header_.tokens - start,
              "tokens {} + {} of {}", start, out.size(), header_.tokens);
  header_.token_bytes == 2 ? copy_tokens<std::uint16_t>(tokens_, start, out)
                           : copy_tokens<std::uint32_t>(tokens_, start, out);
}

}  // namespace shoal::data
