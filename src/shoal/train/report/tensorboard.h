#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/train/report/pixels.h"

namespace shoal::train {

/// Return CRC-32C (Castagnoli), as iSCSI has it, and as TFRecord masks it: rotated right by 15 bits
/// plus a constant.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

/// A TensorBoard event file: TFRecord frames (length, its checksum, payload, its checksum) that
/// hold `Event` messages of TensorFlow's event.proto. Each event is flushed, so that TensorBoard
/// can follow a run.
class EventFile {
 public:
  /// Opens a new file in `folder`, which is made if needed, with a name that TensorBoard expects.
  /// `step`: the run begins after this step; TensorBoard hides what earlier files of the folder
  /// have for later steps. Throws Error(output).
  EventFile(const std::string& folder, std::int64_t step);

  void scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);
  /// A text that TensorBoard shows as it is, line by line. Bytes that are not UTF-8, such as those
  /// of a token that is a part of a character, become U+FFFD.
  void text(std::int64_t step, const std::string& tag, std::string_view bytes);
  /// A picture with a line of Markdown that says what it shows.
  void picture(std::int64_t step, const std::string& tag, const Pixels& picture,
               const std::string& description);
  const std::string& path() const { return path_; }

 private:
  /// `field`: of a summary's value, which is in `value`.
  void write_value(std::int64_t step, const std::string& tag, int field, const std::string& value,
                   const std::string& metadata);
  void write_summary(std::int64_t step, const std::string& values);
  void write(const std::string& event);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace shoal::train
