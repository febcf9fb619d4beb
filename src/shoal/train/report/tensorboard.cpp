#include "shoal/train/report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shoal/base/host_name.h"
#include "shoal/base/system_error.h"

namespace shoal::train {
namespace {

// The wire format of protocol buffers: a tag (field << 3 | type), then a varint (0), 8 bytes (1), a
// length and bytes (2) or 4 bytes (5).
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9;
constexpr int kHeight = 1, kWidth = 2, kColorSpace = 3, kEncoded = 4;
constexpr int kRgb = 3;
constexpr int kPlugin = 1, kPluginName = 1, kDescription = 3;
}  // namespace summary
// tensorflow/core/framework/tensor.proto and types.proto.
namespace tensor {
constexpr int kType = 1, kShape = 2, kString = 8;
constexpr int kTypeString = 7;
}  // namespace tensor
constexpr int kSessionStatus = 1, kSessionStart = 1;

// Seven bits a byte, the lowest first; the highest bit says that more follow.
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void put_raw(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_tag(std::string& out, int field, Wire wire) {
  put_varint(out, static_cast<std::uint64_t>(field) << 3 | wire);
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_number(std::string& out, int field, std::int64_t value) {
  put_tag(out, field, kVarint);
  put_varint(out, static_cast<std::uint64_t>(value));
}

/// The metadata of a value that this plugin of TensorBoard shows.
std::string metadata_of(std::string_view plugin_name) {
  std::string plugin;
  put_bytes(plugin, summary::kPluginName, plugin_name);
  std::string metadata;
  put_bytes(metadata, summary::kPlugin, plugin);
  return metadata;
}

/// Returns the text with U+FFFD in the place of bytes that are not UTF-8.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
      .get<std::string>();
}

std::string new_event(std::int64_t step) {
  std::string out;
  put_tag(out, event::kWallTime, kFixed64);
  put_raw(
      out,
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  put_tag(out, event::kStep, kVarint);
  put_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      // The polynomial of Castagnoli, bits reversed.
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

EventFile::EventFile(const std::string& folder, std::int64_t step) : file_(nullptr, &std::fclose) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  const std::string host = host_name();
  // The order of names is the order in which TensorBoard reads: by time, then by the step at which
  // the run resumed.
  path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, seconds,
                      host.empty() ? "host" : host, ::getpid(), step);
  file_.reset(std::fopen(path_.c_str(), "wbe"));
  if (!file_) throw system_error(ErrorKind::kOutput, "tensorboard", "cannot create " + path_);
  std::string first = new_event(0);
  put_bytes(first, event::kFileVersion, "brain.Event:2");
  write(first);
  // A session start tells TensorBoard to forget what an earlier file of the folder says of later
  // steps.
  std::string session;
  put_tag(session, kSessionStatus, kVarint);
  put_varint(session, kSessionStart);
  std::string start = new_event(step + 1);
  put_bytes(start, event::kSessionLog, session);
  write(start);
}

void EventFile::scalars(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& values) {
  std::string all;
  for (const auto& [tag, value] : values) {
    std::string one;
    put_bytes(one, summary::kTag, tag);
    put_tag(one, summary::kSimpleValue, kFixed32);
    put_raw(one, static_cast<float>(value));
    put_bytes(all, summary::kValue, one);
  }
  write_summary(step, all);
}

void EventFile::text(std::int64_t step, const std::string& tag, std::string_view bytes) {
  // TensorBoard shows no text of a run that has one it cannot decode.
  const std::string text = valid_utf8(bytes);
  // Markdown shows what is indented by four letters as it is, whatever stands in it.
  std::string shown;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    shown += fmt::format("    {}\n", std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  std::string content;
  put_number(content, tensor::kType, tensor::kTypeString);
  put_bytes(content, tensor::kShape, "");
  put_bytes(content, tensor::kString, shown);
  write_value(step, tag, summary::kTensor, content, metadata_of("text"));
}

void EventFile::picture(std::int64_t step, const std::string& tag, const Pixels& picture,
                        const std::string& description) {
  std::string image;
  put_number(image, summary::kHeight, picture.height());
  put_number(image, summary::kWidth, picture.width());
  put_number(image, summary::kColorSpace, summary::kRgb);
  put_bytes(image, summary::kEncoded, picture.to_png());
  std::string metadata = metadata_of("images");
  put_bytes(metadata, summary::kDescription, description);
  write_value(step, tag, summary::kImage, image, metadata);
}

void EventFile::write_value(std::int64_t step, const std::string& tag, int field,
                            const std::string& value, const std::string& metadata) {
  std::string one;
  put_bytes(one, summary::kTag, tag);
  put_bytes(one, field, value);
  put_bytes(one, summary::kMetadata, metadata);
  std::string all;
  put_bytes(all, summary::kValue, one);
  write_summary(step, all);
}

void EventFile::write_summary(std::int64_t step, const std::string& values) {
  std::string out = new_event(step);
  put_bytes(out, event::kSummary, values);
  write(out);
}

void EventFile::write(const std::string& event) {
  std::string frame;
  // TFRecord: length, its checksum, payload, its checksum. Flushed at once, so that a reader lags
  // by one event at most.
  put_raw(frame, static_cast<std::uint64_t>(event.size()));
  put_raw(frame, masked_crc32c(frame));
  frame += event;
  put_raw(frame, masked_crc32c(event));
  if (std::fwrite(frame.data(), 1, frame.size(), file_.get()) != frame.size() ||
      std::fflush(file_.get()) != 0)
    throw system_error(ErrorKind::kOutput, "tensorboard", "cannot write " + path_);
}

}  // namespace shoal::train
