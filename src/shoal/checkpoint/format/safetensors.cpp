#include "shoal/checkpoint/format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/strict_json.h"
#include "shoal/checkpoint/format/value_checksum.h"

namespace shoal::checkpoint::format {
namespace {

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kLongestHeader = 100'000'000;  // the limit of the reference implementation
constexpr std::int64_t kAlignment = 64;
constexpr const char* kMetadata = "__metadata__";

std::string changed_case(std::string text, int (*change)(int)) {
  for (char& c : text) c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return text;
}
std::string dtype_of(ElementType type) { return changed_case(name(type), std::toupper); }
std::optional<ElementType> type_of(const std::string& dtype) {
  const auto type = element_type(changed_case(dtype, std::tolower));
  return type && dtype_of(*type) == dtype && type != ElementType::kC128 ? type : std::nullopt;
}

/// Bytes of such a tensor; nothing when they are more than 64 bits count.
std::optional<std::int64_t> bytes_of(const Shape& shape, ElementType type) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(type));
  for (const auto size : shape)
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  return bytes;
}

/// One entry, its offset counted from the end of the header.
Entry parse_entry(const std::string& name, const json& value, std::int64_t data_bytes,
                  const std::string& path) {
  const std::string where = fmt::format("'{}': tensor '{}'", path, name);
  Entry entry{.name = name};
  const std::string dtype = string_value(field(value, "dtype", where), where + ": dtype");
  const auto type = type_of(dtype);
  if (!type) throw broken(where, fmt::format("dtype '{}' is not known", dtype));
  entry.type = *type;
  entry.shape = whole_numbers(field(value, "shape", where), where + ": shape");
  const auto offsets = whole_numbers(field(value, "data_offsets", where), where + ": data_offsets");
  if (value.size() != 3) throw broken(where, "has keys beside dtype, shape and data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    throw broken(where, fmt::format("data_offsets {} do not lie in the {} bytes of data",
                                    text(offsets), data_bytes));
  }
  const auto bytes = bytes_of(entry.shape, entry.type);
  if (bytes != offsets[1] - offsets[0]) {
    throw broken(where, fmt::format("{} of {} does not take the {} bytes of its data_offsets",
                                    text(entry.shape), dtype, offsets[1] - offsets[0]));
  }
  entry.offset = offsets[0];
  return entry;
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& path) {
  const std::string where = fmt::format("'{}': {}", path, kMetadata);
  if (!value.is_object()) throw broken(where, "an object of strings is expected");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) metadata[key] = string_value(text, where);
  return metadata;
}

/// The length of the JSON text, from the first 8 bytes.
std::int64_t header_length(std::string_view bytes, std::int64_t file_bytes,
                           const std::string& path) {
  const std::string where = fmt::format("'{}'", path);
  if (file_bytes < kLengthBytes || static_cast<std::int64_t>(bytes.size()) < kLengthBytes)
    throw broken(where, fmt::format("{} bytes are too few for a safetensors file", file_bytes));
  // Little-endian, whatever the processor's order. The bound keeps a damaged length from taking
  // memory.
  std::uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i)
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  if (length > static_cast<std::uint64_t>(std::min(kLongestHeader, file_bytes - kLengthBytes))) {
    throw broken(
        where, fmt::format(
                   "the header would have {} bytes, in a file of {}: truncated, or not safetensors",
                   length, file_bytes));
  }
  return static_cast<std::int64_t>(length);
}

}  // namespace

const Entry* Header::find(std::string_view name) const {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

Header parse_header(std::string_view bytes, std::int64_t file_bytes, const std::string& path) {
  const std::string where = fmt::format("'{}'", path);
  const std::int64_t length = header_length(bytes, file_bytes, path);
  Header header{.data_begin = kLengthBytes + length};
  if (static_cast<std::int64_t>(bytes.size()) < header.data_begin)
    throw broken(where, "the header is cut off");
  const std::string_view text = bytes.substr(kLengthBytes, length);
  if (!text.starts_with('{'))
    throw broken(where, "the header does not begin with '{': not safetensors");
  const json root = parse_json(text, where + ": header");
  const std::int64_t data_bytes = file_bytes - header.data_begin;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadata) {
      header.metadata = parse_metadata(value, path);
    } else {
      header.entries.push_back(parse_entry(name, value, data_bytes, path));
    }
  }
  // Tensors without elements share their offset with what follows them.
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const Entry& a, const Entry& b) {
                     return a.offset != b.offset ? a.offset < b.offset : a.bytes() < b.bytes();
                   });
  // Each tensor begins where the one before ends: this excludes gaps and overlaps in one pass.
  std::int64_t at = 0;
  for (Entry& entry : header.entries) {
    if (entry.offset != at) {
      throw broken(
          where,
          fmt::format(
              "tensor '{}' begins at byte {} of the data where {} is expected: a gap or an overlap",
              entry.name, entry.offset, at));
    }
    at += entry.bytes();
    entry.offset += header.data_begin;
  }
  if (at != data_bytes) {
    throw broken(where,
                 fmt::format("{} bytes of data where the header describes {}: truncated or damaged",
                             data_bytes, at));
  }
  header.checksum = byte_checksum(bytes.substr(0, header.data_begin));
  return header;
}

Header read_header(const File& file) {
  std::string bytes(std::min(file.bytes(), kLengthBytes), '\0');
  file.read(bytes.data(), 0, bytes.size());
  bytes.resize(kLengthBytes + header_length(bytes, file.bytes(), file.path()));
  file.read(bytes.data(), 0, bytes.size());
  return parse_header(bytes, file.bytes(), file.path());
}

std::string render_header(std::vector<Entry>& entries,
                          const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json root;
  if (!metadata.empty()) root[kMetadata] = metadata;
  std::set<std::string> names{kMetadata};
  std::int64_t at = 0;
  for (Entry& entry : entries) {
    SHOAL_USER_CHECK(entry.type != ElementType::kC128, "checkpoint",
                     "safetensors has no type c128: tensor '{}'", entry.name);
    SHOAL_USER_CHECK(names.insert(entry.name).second, "checkpoint", "tensor name '{}' is taken",
                     entry.name);
    const std::int64_t end = at + entry.bytes();
    root[entry.name] = {
        {"dtype", dtype_of(entry.type)}, {"shape", entry.shape}, {"data_offsets", {at, end}}};
    entry.offset = std::exchange(at, end);
  }
  std::string text = entries.empty() && metadata.empty()
                         ? "{}"
                         : root.dump(-1, ' ', false, json::error_handler_t::strict);
  // The format allows spaces behind the JSON.
  text.append((kAlignment - (kLengthBytes + text.size()) % kAlignment) % kAlignment, ' ');
  SHOAL_USER_CHECK(static_cast<std::int64_t>(text.size()) <= kLongestHeader, "checkpoint",
                   "the header of {} tensors takes {} bytes, more than {}", entries.size(),
                   text.size(), kLongestHeader);
  std::string bytes;
  for (int i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  bytes += text;
  for (Entry& entry : entries) entry.offset += static_cast<std::int64_t>(bytes.size());
  return bytes;
}

}  // namespace shoal::checkpoint::format
