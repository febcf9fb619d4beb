#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::train {

struct Color {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;

  bool operator==(const Color&) const = default;
};

/// A picture for readers that take no SVG.
class Pixels {
 public:
  Pixels(int width, int height, Color background);

  int width() const { return width_; }
  int height() const { return height_; }
  /// Column `x` from the left and row `y` from the top, both from 0 on.
  Color at(int x, int y) const;
  void set(int x, int y, Color color);

  /// Returns it as a PNG file (ISO/IEC 15948) of 8-bit red, green and blue.
  std::string to_png() const;

 private:
  std::size_t place(int x, int y) const;

  int width_;
  int height_;
  std::vector<std::uint8_t> bytes_;  ///< as PNG has them: a row begins with its filter, 0 for none
};

}  // namespace shoal::train
