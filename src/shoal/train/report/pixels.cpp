#include "shoal/train/report/pixels.h"

#include <zlib.h>

#include <string_view>

#include "shoal/base/check.h"

namespace shoal::train {
namespace {

constexpr int kChannels = 3;

/// The highest byte first.
std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

/// A chunk: the length of its data, its name, the data, and a checksum of name and data.
std::string chunk(std::string_view name, std::string_view data) {
  std::string named(name);
  named += data;
  const auto sum =
      ::crc32(0, reinterpret_cast<const Bytef*>(named.data()), static_cast<uInt>(named.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + named +
         big_endian(static_cast<std::uint32_t>(sum));
}

}  // namespace

Pixels::Pixels(int width, int height, Color background)
    : width_(width),
      height_(height),
      bytes_(static_cast<std::size_t>(height) * (1 + kChannels * static_cast<std::size_t>(width))) {
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) set(x, y, background);
}

std::size_t Pixels::place(int x, int y) const {
  SHOAL_CHECK(x >= 0 && x < width_ && y >= 0 && y < height_, "pixel {}, {} of {} x {}", x, y,
              width_, height_);
  const std::size_t row = 1 + kChannels * static_cast<std::size_t>(width_);
  return static_cast<std::size_t>(y) * row + 1 + kChannels * static_cast<std::size_t>(x);
}

Color Pixels::at(int x, int y) const {
  const std::size_t first = place(x, y);
  return {bytes_[first], bytes_[first + 1], bytes_[first + 2]};
}

void Pixels::set(int x, int y, Color color) {
  const std::size_t first = place(x, y);
  bytes_[first] = color.red;
  bytes_[first + 1] = color.green;
  bytes_[first + 2] = color.blue;
}

std::string Pixels::to_png() const {
  uLongf size = ::compressBound(static_cast<uLong>(bytes_.size()));
  std::string packed(size, '\0');
  const int failed = ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, bytes_.data(),
                                static_cast<uLong>(bytes_.size()));
  SHOAL_CHECK(failed == Z_OK, "zlib: {}", failed);
  packed.resize(size);
  // 8 bits, RGB (2), and the only compression, filters and order without interlacing.
  const std::string head = big_endian(static_cast<std::uint32_t>(width_)) +
                           big_endian(static_cast<std::uint32_t>(height_)) +
                           std::string("\x08\x02\0\0\0", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", head) + chunk("IDAT", packed) + chunk("IEND", "");
}

}  // namespace shoal::train
