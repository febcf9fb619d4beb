#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  const std::string& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace shoal::train
