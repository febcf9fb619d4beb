#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal {

/// The type of an element of a buffer or tensor. Names are those of safetensors and PyTorch
/// in lower case.
enum class ElementType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF8E4M3,
  kF8E5M2,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

std::size_t size_of(ElementType type);  ///< bytes of one element
/// "f32", "bf16", "i64" ...; "unknown" for a value that a peer sent and that is no type.
const char* name(ElementType type);
std::optional<ElementType> element_type(std::string_view name);
bool is_floating(ElementType type);  ///< fp8 to fp64; not complex

}  // namespace shoal
