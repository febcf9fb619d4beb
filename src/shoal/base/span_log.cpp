#include "shoal/base/span_log.h"

#include <cstring>
#include <map>
#include <type_traits>

#include "shoal/base/check.h"

namespace shoal {
namespace {

/// In packed records a text is its number, counted from 1, in the place of the pointer.
class TextTable {
 public:
  const char* number_of(const char* text) {
    if (!text) return nullptr;
    const auto [place, added] = numbers_.try_emplace(text, texts_.size() + 1);
    if (added) texts_.emplace_back(text);
    return reinterpret_cast<const char*>(place->second);
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, std::uintptr_t, std::less<>> numbers_;
  std::vector<std::string> texts_;
};

class Writer {
 public:
  template <class T>
  void put(const T* values, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(values);
    bytes_.insert(bytes_.end(), bytes, bytes + count * sizeof(T));
  }
  void put(std::uint64_t number) { put(&number, 1); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  std::vector<T> take(std::uint64_t count) {
    SHOAL_CHECK(count <= bytes_.size() / sizeof(T), "{} records in {} bytes", count, bytes_.size());
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data(), count * sizeof(T));
    bytes_ = bytes_.subspan(count * sizeof(T));
    return values;
  }
  std::uint64_t number() { return take<std::uint64_t>(1).front(); }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> pack(const SpanRecorder& recorder) {
  TextTable table;
  std::vector<Span> spans(recorder.spans(), recorder.spans() + recorder.span_count());
  for (Span& span : spans) {
    span.name = table.number_of(span.name);
    span.detail = table.number_of(span.detail);
  }
  std::vector<Transfer> transfers(recorder.transfers(),
                                  recorder.transfers() + recorder.transfer_count());
  for (Transfer& transfer : transfers) {
    transfer.name = table.number_of(transfer.name);
    transfer.group = table.number_of(transfer.group);
  }
  Writer writer;
  writer.put(recorder.dropped());
  writer.put(table.texts().size());
  for (const std::string& text : table.texts()) {
    writer.put(text.size());
    writer.put(text.data(), text.size());
  }
  writer.put(spans.size());
  writer.put(spans.data(), spans.size());
  writer.put(transfers.size());
  writer.put(transfers.data(), transfers.size());
  return writer.take();
}

SpanLog SpanLog::unpack(std::span<const std::byte> bytes) {
  SpanLog log;
  Reader reader(bytes);
  log.dropped = reader.number();
  for (std::uint64_t left = reader.number(); left > 0; --left) {
    const std::vector<char> text = reader.take<char>(reader.number());
    log.texts_.emplace_back(text.begin(), text.end());
  }
  const auto text_of = [&](const char* number) -> const char* {
    const auto index = reinterpret_cast<std::uintptr_t>(number);
    SHOAL_CHECK(index <= log.texts_.size(), "text {} of {}", index, log.texts_.size());
    return index == 0 ? nullptr : log.texts_[index - 1].c_str();
  };
  log.spans = reader.take<Span>(reader.number());
  for (Span& span : log.spans) {
    SHOAL_CHECK(static_cast<int>(span.kind) < kSpanKinds, "a span of kind {}",
                static_cast<int>(span.kind));
    span.name = text_of(span.name);
    span.detail = text_of(span.detail);
  }
  log.transfers = reader.take<Transfer>(reader.number());
  for (Transfer& transfer : log.transfers) {
    transfer.name = text_of(transfer.name);
    transfer.group = text_of(transfer.group);
  }
  SHOAL_CHECK(reader.at_end(), "bytes behind a recording");
  return log;
}

}  // namespace shoal
