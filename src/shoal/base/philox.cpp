#include "shoal/base/philox.h"

#include <cmath>
#include <numbers>

#include "shoal/base/hash.h"

namespace shoal {

// Constants and rounds of Philox4x32-10 as in Salmon et al., SC 2011: two multipliers, and Weyl
// increments of the key (the golden ratio and sqrt(3) - 1). They are a file format: with other
// values no checkpoint would find its dropout masks or samples again.
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

// FNV-1a alone spreads the last bytes of a name badly, so its hash is mixed before it meets the
// key.
Key Key::child(std::string_view name) const {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Key(splitmix64(value_ ^ splitmix64(hash)));
}

// The key is mixed before the index is added: otherwise child(1) of key k would be child(0) of key
// k + 1.
Key Key::child(std::uint64_t index) const { return Key(splitmix64(splitmix64(value_) + index)); }

std::array<std::uint32_t, 4> Key::bits(std::uint64_t index) const {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                {static_cast<std::uint32_t>(value_), static_cast<std::uint32_t>(value_ >> 32)});
}

// A double has 53 bits of precision: the upper 53 of 64 random bits are exact, and 1 is never
// reached.
double Key::uniform(std::uint64_t index) const {
  const auto b = bits(index);
  return static_cast<double>(((static_cast<std::uint64_t>(b[0]) << 32) | b[1]) >> 11) * 0x1p-53;
}

// Box and Muller give two values, sine and cosine. The sine is dropped so that a position needs no
// neighbour.
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
  // Lemire's multiply-shift without rejection: one draw, and a bias below bound / 2^64.
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(x) * bound) >> 64);
}

}  // namespace shoal
