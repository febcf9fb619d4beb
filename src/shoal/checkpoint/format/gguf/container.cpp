#include "shoal/checkpoint/format/gguf/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>

#include "shoal/base/check.h"
#include "shoal/base/number.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/strict_json.h"

namespace shoal::checkpoint::format::gguf {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint32_t kVersion = 3;
constexpr const char* kAlignmentKey = "general.alignment";
constexpr std::int64_t kMostDimensions = 4;

/// The numbers of the types of values in the format.
enum class Kind : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
};
constexpr std::uint32_t kKinds = 13;

/// The fewest bytes of a value.
std::int64_t least_bytes(Kind kind) {
  constexpr std::int64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return kBytes[static_cast<std::uint32_t>(kind)];
}

/// The double whose decimal form is the shortest one of the float.
double shortest(float value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  return parse_number<double>(text).value_or(static_cast<double>(value));
}

std::int64_t aligned(std::int64_t at, std::int64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}

/// Reads a file from its beginning, through a buffer.
class Cursor {
 public:
  Cursor(const ReadBytes& read, std::int64_t bytes, const std::string& path)
      : read_(read), bytes_(bytes), where_(fmt::format("'{}'", path)) {}

  std::int64_t at() const { return at_; }
  std::int64_t left() const { return bytes_ - at_; }
  [[noreturn]] void fail(const std::string& what) const { throw broken(where_, what); }

  void bytes(void* data, std::int64_t count) {
    if (count > left()) {
      fail(fmt::format("ends at byte {}, within its header: truncated, or not GGUF", bytes_));
    }
    auto* to = static_cast<char*>(data);
    while (count > 0) {
      if (next_ == buffer_.size()) fill();
      const auto part = std::min<std::int64_t>(count, buffer_.size() - next_);
      std::memcpy(to, buffer_.data() + next_, part);
      next_ += part;
      at_ += part;
      to += part;
      count -= part;
    }
  }

  template <class T>
  T number() {
    unsigned char raw[sizeof(T)];
    bytes(raw, sizeof raw);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < sizeof raw; ++i) bits |= std::uint64_t{raw[i]} << (8 * i);
    if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    } else if constexpr (std::is_same_v<T, double>) {
      return std::bit_cast<double>(bits);
    } else {
      return static_cast<T>(bits);
    }
  }

  /// A count of things that take at least `least` bytes each.
  std::int64_t count(std::int64_t least, const char* what) {
    const auto count = number<std::uint64_t>();
    if (count > static_cast<std::uint64_t>(left() / least)) {
      fail(fmt::format("{} {} do not fit into the {} bytes that follow: truncated, or damaged",
                       count, what, left()));
    }
    return static_cast<std::int64_t>(count);
  }

  std::string text() {
    std::string text(count(1, "bytes of a text"), '\0');
    bytes(text.data(), static_cast<std::int64_t>(text.size()));
    return text;
  }

 private:
  void fill() {
    constexpr std::int64_t kBuffer = 1 << 16;
    buffer_.resize(std::min(kBuffer, left()));
    read_(buffer_.data(), at_, buffer_.size());
    next_ = 0;
  }

  const ReadBytes& read_;
  std::int64_t bytes_;
  std::string where_;
  std::int64_t at_ = 0;
  std::vector<char> buffer_;
  std::size_t next_ = 0;
};

Kind read_kind(Cursor& cursor, const std::string& key) {
  const auto number = cursor.number<std::uint32_t>();
  if (number >= kKinds)
    cursor.fail(fmt::format("key '{}' has a value of unknown type {}", key, number));
  return static_cast<Kind>(number);
}

std::int64_t read_integer(Cursor& cursor, Kind kind, const std::string& key) {
  switch (kind) {
    case Kind::kU8:
      return cursor.number<std::uint8_t>();
    case Kind::kI8:
      return cursor.number<std::int8_t>();
    case Kind::kU16:
      return cursor.number<std::uint16_t>();
    case Kind::kI16:
      return cursor.number<std::int16_t>();
    case Kind::kU32:
      return cursor.number<std::uint32_t>();
    case Kind::kI32:
      return cursor.number<std::int32_t>();
    case Kind::kI64:
      return cursor.number<std::int64_t>();
    default: {
      const auto number = cursor.number<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        cursor.fail(fmt::format("key '{}' is {}, more than 2^63 - 1", key, number));
      return static_cast<std::int64_t>(number);
    }
  }
}

bool read_boolean(Cursor& cursor, const std::string& key) {
  const auto number = cursor.number<std::uint8_t>();
  if (number > 1) cursor.fail(fmt::format("key '{}' is {}, neither true nor false", key, number));
  return number == 1;
}

double read_real(Cursor& cursor, Kind kind) {
  return kind == Kind::kF32 ? shortest(cursor.number<float>()) : cursor.number<double>();
}

bool is_real(Kind kind) { return kind == Kind::kF32 || kind == Kind::kF64; }

template <class T, class Read>
Value read_list(std::int64_t count, const Read& read) {
  std::vector<T> list;
  list.reserve(count);
  for (std::int64_t i = 0; i < count; ++i) list.push_back(read());
  return list;
}

Value read_array(Cursor& cursor, const std::string& key) {
  const Kind kind = read_kind(cursor, key);
  if (kind == Kind::kArray)
    cursor.fail(fmt::format("key '{}' is a list of lists, which Shoal does not read", key));
  const std::int64_t count = cursor.count(least_bytes(kind), "elements of a list");
  if (kind == Kind::kText) return read_list<std::string>(count, [&] { return cursor.text(); });
  if (is_real(kind)) return read_list<double>(count, [&] { return read_real(cursor, kind); });
  return read_list<std::int64_t>(count, [&]() -> std::int64_t {
    if (kind == Kind::kBool) return read_boolean(cursor, key);
    return read_integer(cursor, kind, key);
  });
}

Value read_value(Cursor& cursor, const std::string& key) {
  const Kind kind = read_kind(cursor, key);
  if (kind == Kind::kArray) return read_array(cursor, key);
  if (kind == Kind::kText) return cursor.text();
  if (kind == Kind::kBool) return read_boolean(cursor, key);
  if (is_real(kind)) return read_real(cursor, kind);
  return read_integer(cursor, kind, key);
}

BlockType read_type(Cursor& cursor, const std::string& name) {
  const auto number = cursor.number<std::uint32_t>();
  const auto type = block_type(number);
  if (!type) {
    cursor.fail(
        fmt::format("tensor '{}' is {}, which Shoal does not read (F32, F16, BF16, Q8_0, Q4_0, "
                    "Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K are)",
                    name, ggml_name(number)));
  }
  return *type;
}

/// Bytes of the tensor; nothing when they are more than 64 bits count or its rows are no whole
/// blocks.
std::optional<std::int64_t> checked_bytes(const Tensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape)
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  std::int64_t widest;  // no element takes more than 4 bytes
  if (columns % block_elements(tensor.type) != 0 || __builtin_mul_overflow(count, 4, &widest))
    return std::nullopt;
  return bytes_of(tensor.type, count);
}

/// One entry of the list, its offset counted from the beginning of the data.
Tensor read_tensor(Cursor& cursor) {
  Tensor tensor{.name = cursor.text()};
  const auto dimensions = cursor.number<std::uint32_t>();
  if (dimensions > kMostDimensions)
    cursor.fail(fmt::format("tensor '{}' has {} dimensions", tensor.name, dimensions));
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = cursor.number<std::uint64_t>();
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      cursor.fail(fmt::format("tensor '{}' has a dimension of {}", tensor.name, size));
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  tensor.type = read_type(cursor, tensor.name);
  const auto offset = cursor.number<std::uint64_t>();
  if (offset > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / 2))
    cursor.fail(fmt::format("tensor '{}' begins at byte {} of the data", tensor.name, offset));
  tensor.offset = static_cast<std::int64_t>(offset);
  if (!checked_bytes(tensor)) {
    cursor.fail(fmt::format("tensor '{}' of {} cannot be of type {}", tensor.name,
                            text(tensor.shape), name(tensor.type)));
  }
  return tensor;
}

std::int64_t read_alignment(const Metadata& metadata, const Cursor& cursor) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 20;
  const std::int64_t alignment = metadata.integer(kAlignmentKey).value_or(kAlignment);
  if (alignment < 1 || alignment > kLargest || (alignment & (alignment - 1)) != 0) {
    cursor.fail(
        fmt::format("{} is {}, no power of two up to {}", kAlignmentKey, alignment, kLargest));
  }
  return alignment;
}

/// Each tensor begins where the one before ends: this excludes gaps and overlaps in one pass.
void place_tensors(std::vector<Tensor>& tensors, std::int64_t alignment, std::int64_t file_bytes,
                   const Cursor& cursor) {
  const std::int64_t begin = aligned(cursor.at(), alignment);
  std::int64_t at = 0;
  for (Tensor& tensor : tensors) {
    if (tensor.offset != at) {
      cursor.fail(fmt::format(
          "tensor '{}' begins at byte {} of the data where {} is expected: a gap or an overlap",
          tensor.name, tensor.offset, at));
    }
    tensor.offset += begin;
    if (tensor.bytes() > file_bytes - tensor.offset) {
      cursor.fail(fmt::format("tensor '{}' ends at byte {}, the file at {}: truncated", tensor.name,
                              tensor.offset + tensor.bytes(), file_bytes));
    }
    at = aligned(at + tensor.bytes(), alignment);
  }
}

/// Appends what parse_header reads.
class Output {
 public:
  template <class T>
  void number(T value) {
    std::uint64_t bits;
    if constexpr (std::is_same_v<T, float>) {
      bits = std::bit_cast<std::uint32_t>(value);
    } else {
      bits = static_cast<std::uint64_t>(value);
    }
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(bits >> (8 * i));
  }
  void kind(Kind kind) { number(static_cast<std::uint32_t>(kind)); }
  void text(std::string_view text) {
    number(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
  }
  template <class T>
  void list(Kind element, const std::vector<T>& values) {
    kind(Kind::kArray);
    kind(element);
    number(static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) {
      if constexpr (std::is_same_v<T, std::string>) {
        text(value);
      } else if constexpr (std::is_same_v<T, double>) {
        number(static_cast<float>(value));
      } else if (element == Kind::kI32) {
        number(static_cast<std::int32_t>(value));
      } else {
        number(value);
      }
    }
  }
  void pad() { bytes_.resize(aligned(static_cast<std::int64_t>(bytes_.size()), kAlignment)); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

template <class Narrow>
bool all_fit(const std::vector<std::int64_t>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](std::int64_t value) { return std::in_range<Narrow>(value); });
}

struct ValueWriter {
  Output& output;

  void operator()(bool value) const {
    output.kind(Kind::kBool);
    output.number(static_cast<std::uint8_t>(value));
  }
  void operator()(std::int64_t value) const {
    const bool narrow = std::in_range<std::uint32_t>(value);
    output.kind(narrow ? Kind::kU32 : Kind::kI64);
    narrow ? output.number(static_cast<std::uint32_t>(value)) : output.number(value);
  }
  void operator()(double value) const {
    output.kind(Kind::kF32);
    output.number(static_cast<float>(value));
  }
  void operator()(const std::string& value) const {
    output.kind(Kind::kText);
    output.text(value);
  }
  void operator()(const std::vector<std::int64_t>& values) const {
    output.list(all_fit<std::int32_t>(values) ? Kind::kI32 : Kind::kI64, values);
  }
  void operator()(const std::vector<double>& values) const { output.list(Kind::kF32, values); }
  void operator()(const std::vector<std::string>& values) const {
    output.list(Kind::kText, values);
  }
};

}  // namespace

bool Metadata::add(std::string key, Value value) {
  return values_.emplace(std::move(key), std::move(value)).second;
}

template <class T>
const T* Metadata::find(const std::string& key, const char* kind) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  if (!value) throw broken(fmt::format("'{}'", file_), fmt::format("key '{}' is no {}", key, kind));
  return value;
}

std::optional<bool> Metadata::boolean(const std::string& key) const {
  const auto* value = find<bool>(key, "truth value");
  return value ? std::optional(*value) : std::nullopt;
}
std::optional<std::int64_t> Metadata::integer(const std::string& key) const {
  const auto* value = find<std::int64_t>(key, "whole number");
  return value ? std::optional(*value) : std::nullopt;
}
std::optional<double> Metadata::real(const std::string& key) const {
  const auto found = values_.find(key);
  if (found != values_.end() && std::holds_alternative<std::int64_t>(found->second))
    return static_cast<double>(std::get<std::int64_t>(found->second));
  const auto* value = find<double>(key, "number");
  return value ? std::optional(*value) : std::nullopt;
}
std::optional<std::string> Metadata::text(const std::string& key) const {
  const auto* value = find<std::string>(key, "text");
  return value ? std::optional(*value) : std::nullopt;
}
const std::vector<std::string>* Metadata::texts(const std::string& key) const {
  return find<std::vector<std::string>>(key, "list of texts");
}
const std::vector<std::int64_t>* Metadata::integers(const std::string& key) const {
  return find<std::vector<std::int64_t>>(key, "list of whole numbers");
}

const Tensor* Header::find(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Header parse_header(const ReadBytes& read, std::int64_t file_bytes, const std::string& path) {
  Cursor cursor(read, file_bytes, path);
  if (cursor.number<std::uint32_t>() != kMagic) cursor.fail("does not begin with GGUF");
  const auto version = cursor.number<std::uint32_t>();
  // Version 1 counts with 32 bits. A big-endian file has its version in the upper byte.
  if (version != 2 && version != kVersion) {
    cursor.fail(fmt::format("is GGUF of version {}{}; 2 and 3 are read", version,
                            (version & 0xffff) == 0 ? ", or big-endian" : ""));
  }
  constexpr std::int64_t kLeastTensor = 8 + 4 + 4 + 8;
  constexpr std::int64_t kLeastPair = 8 + 4 + 1;
  const std::int64_t tensors = cursor.count(kLeastTensor, "tensors");
  const std::int64_t pairs = cursor.count(kLeastPair, "keys");
  Header header{.metadata = Metadata(path)};
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::string key = cursor.text();
    if (!header.metadata.add(key, read_value(cursor, key)))
      cursor.fail(fmt::format("key '{}' stands twice", key));
  }
  std::set<std::string> names;
  for (std::int64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(read_tensor(cursor));
    if (!names.insert(header.tensors.back().name).second)
      cursor.fail(fmt::format("tensor '{}' stands twice", header.tensors.back().name));
  }
  place_tensors(header.tensors, read_alignment(header.metadata, cursor), file_bytes, cursor);
  return header;
}

Header read_header(const std::string& path) {
  const File file = File::open(path);
  return parse_header(
      [&](void* data, std::int64_t offset, std::size_t count) { file.read(data, offset, count); },
      file.bytes(), path);
}

std::string render_header(const Metadata& metadata, std::vector<Tensor>& tensors) {
  Output output;
  output.number(kMagic);
  output.number(kVersion);
  output.number(static_cast<std::uint64_t>(tensors.size()));
  output.number(static_cast<std::uint64_t>(metadata.values().size()));
  for (const auto& [key, value] : metadata.values()) {
    SHOAL_USER_CHECK(key != kAlignmentKey, "checkpoint", "GGUF is written with the alignment {}",
                     kAlignment);
    output.text(key);
    std::visit(ValueWriter{output}, value);
  }
  std::set<std::string> names;
  std::int64_t at = 0;
  for (Tensor& tensor : tensors) {
    SHOAL_USER_CHECK(names.insert(tensor.name).second, "checkpoint", "tensor name '{}' is taken",
                     tensor.name);
    const auto bytes = checked_bytes(tensor);
    SHOAL_USER_CHECK(bytes && tensor.shape.size() <= kMostDimensions, "checkpoint",
                     "tensor '{}' of {} cannot be of type {}", tensor.name, text(tensor.shape),
                     name(tensor.type));
    output.text(tensor.name);
    output.number(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      output.number(static_cast<std::uint64_t>(*size));
    output.number(static_cast<std::uint32_t>(tensor.type));
    output.number(static_cast<std::uint64_t>(at));
    tensor.offset = std::exchange(at, aligned(at + *bytes, kAlignment));
  }
  output.pad();
  std::string bytes = output.take();
  for (Tensor& tensor : tensors) tensor.offset += static_cast<std::int64_t>(bytes.size());
  return bytes;
}

}  // namespace shoal::checkpoint::format::gguf
