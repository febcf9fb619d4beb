#include "shoal/wire/key_runs.h"

#include <cstring>
#include <limits>

#include "shoal/base/number.h"

namespace shoal::wire {
namespace {

// A run is the length of its prefix, `first` and `count`, each of four bytes, and the prefix.
constexpr std::size_t kHeader = 3 * sizeof(std::uint32_t);

/// Returns a key as a run of one: with the number at its end, where that is as to_string writes it.
KeyRun run_of(const std::string& key) {
  std::size_t digits = 0;
  while (digits < key.size() && key[key.size() - 1 - digits] >= '0' &&
         key[key.size() - 1 - digits] <= '9')
    ++digits;
  // The number of "x007" is 7, behind "x00".
  while (digits > 1 && key[key.size() - digits] == '0') --digits;
  const std::string_view text(key);
  const auto number = parse_number<std::uint32_t>(text.substr(key.size() - digits));
  if (digits == 0 || !number) return {key, 0, 0};
  return {key.substr(0, key.size() - digits), *number, 1};
}

}  // namespace

std::string KeyRun::key(std::size_t place) const {
  return count == 0 ? prefix : prefix + std::to_string(first + place);
}

std::vector<KeyRun> runs_of(const std::vector<std::string>& keys) {
  std::vector<KeyRun> runs;
  for (const std::string& key : keys) {
    KeyRun next = run_of(key);
    if (!runs.empty() && next.count == 1 && runs.back().count > 0) {
      KeyRun& last = runs.back();
      if (last.prefix == next.prefix && std::uint64_t{last.first} + last.count == next.first) {
        ++last.count;
        continue;
      }
    }
    runs.push_back(std::move(next));
  }
  return runs;
}

std::string encode(const std::vector<KeyRun>& runs) {
  std::string bytes;
  for (const KeyRun& run : runs) {
    for (const std::uint32_t number :
         {static_cast<std::uint32_t>(run.prefix.size()), run.first, run.count})
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    bytes += run.prefix;
  }
  return bytes;
}

std::optional<std::vector<KeyRun>> decode_runs(std::string_view bytes, std::size_t longest,
                                               std::size_t most) {
  std::vector<KeyRun> runs;
  std::size_t keys = 0;
  while (!bytes.empty()) {
    std::uint32_t header[3];
    if (bytes.size() < kHeader) return std::nullopt;
    std::memcpy(header, bytes.data(), kHeader);
    const auto [length, first, count] = header;
    bytes.remove_prefix(kHeader);
    if (length > bytes.size() || length > longest) return std::nullopt;
    if (count > 0 && first > std::numeric_limits<std::uint32_t>::max() - (count - 1))
      return std::nullopt;
    runs.push_back({std::string(bytes.substr(0, length)), first, count});
    bytes.remove_prefix(length);
    keys += runs.back().keys();
    if (keys > most) return std::nullopt;
  }
  return runs;
}

}  // namespace shoal::wire
