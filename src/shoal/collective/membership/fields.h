#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

/// The longest text and the longest list of a letter, in characters and in elements.
constexpr std::size_t kMostText = 4096;
constexpr std::size_t kMostElements = View::kMostMembers;

/// Appends fields: numbers with their lowest byte first, lists and texts behind their length in
/// four bytes, what is optional behind a byte that is 0 or 1.
class FieldWriter {
 public:
  template <std::unsigned_integral Number>
  void field(const char*, Number number) {
    for (std::size_t i = 0; i < sizeof(Number); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(number) >> (8 * i)));
  }
  void field(const char* name, bool flag) { field(name, static_cast<std::uint8_t>(flag)); }
  template <std::size_t size>
  void field(const char*, const std::array<std::byte, size>& bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// Cuts a text that is longer than a reader takes.
  void field(const char* name, const std::string& text) {
    const std::size_t size = std::min(text.size(), kMostText);
    field(name, static_cast<std::uint32_t>(size));
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  template <class Element>
  void field(const char* name, const std::vector<Element>& list);
  template <class Value>
  void field(const char* name, const std::optional<Value>& value);
  void field(const char* name, Outcome::Kind kind) { field(name, static_cast<std::uint8_t>(kind)); }
  template <class Struct>
  requires std::is_class_v<Struct>
  void field(const char* name, const Struct& value);

  wire::Bytes take() { return std::move(bytes_); }

 private:
  wire::Bytes bytes_;
};

/// Reads what FieldWriter wrote. The bytes come from outside: every length, flag and number is
/// checked before it is used, and memory is taken for what is there, not for what a length says.
class FieldReader {
 public:
  FieldReader(std::string what, std::span<const std::byte> bytes)
      : what_(std::move(what)), bytes_(bytes) {}

  template <std::unsigned_integral Number>
  void field(const char* name, Number& number) {
    std::uint64_t value = 0;
    const std::span<const std::byte> from = take(name, sizeof(Number));
    for (std::size_t i = 0; i < sizeof(Number); ++i)
      value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    number = static_cast<Number>(value);
  }
  void field(const char* name, bool& flag);
  void field(const char* name, Outcome::Kind& kind);
  template <std::size_t size>
  void field(const char* name, std::array<std::byte, size>& bytes) {
    const std::span<const std::byte> from = take(name, size);
    std::copy(from.begin(), from.end(), bytes.begin());
  }
  void field(const char* name, std::string& text);
  template <class Element>
  void field(const char* name, std::vector<Element>& list);
  template <class Value>
  void field(const char* name, std::optional<Value>& value);
  template <class Struct>
  requires std::is_class_v<Struct>
  void field(const char* name, Struct& value);

  /// Throws Error(data) where bytes are left.
  void end() const;
  [[noreturn]] void refuse(const char* name, const std::string& why) const;

 private:
  std::span<const std::byte> take(const char* name, std::size_t size);

  std::string what_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

/// Writes the fields of a view in their order.
void write_fields(FieldWriter& writer, const View& view);

}  // namespace shoal::collective::membership
