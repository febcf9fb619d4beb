#include "shoal/base/philox.h"

#include <cmath>
#include <numbers>

#include "shoal/base/hash.h"

namespace shoal {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c,
                                    std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * c[0];
    const std::uint64_t b = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

Key Key::child(std::string_view name) const {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Key(splitmix64(value_ ^ splitmix64(hash)));
}

Key Key::child(std::uint64_t index) const { return Key(splitmix64(splitmix64(value_) + index)); }

std::array<std::uint32_t, 4> Key::bits(std::uint64_t index) const {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                {static_cast<std::uint32_t>(value_), static_cast<std::uint32_t>(value_ >> 32)});
}

double Key::uniform(std::uint64_t index) const {
  const auto b = bits(index);
  return static_cast<double>(((static_cast<std::uint64_t>(b[0]) << 32) | b[1]) >> 11) * 0x1p-53;
}

double Key::normal(std::uint64_t index) const {
  const auto b = bits(index);
  // (b + 1) / 2^32 lies in (0, 1]: the logarithm is finite.
  const double u = (b[0] + 1.0) * 0x1p-32;
  const double v = b[1] * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

std::uint64_t Key::below(std::uint64_t index, std::uint64_t bound) const {
  const auto b = bits(index);
  const std::uint64_t x = (static_cast<std::uint64_t>(b[0]) << 32) | b[1];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(x) * bound) >> 64);
}

}  // namespace shoal
