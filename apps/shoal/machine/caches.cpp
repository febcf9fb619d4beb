#include "apps/shoal/machine/caches.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "shoal/base/file.h"
#include "shoal/base/number.h"

namespace shoal::apps {
namespace {

constexpr int kMostCaches = 16;
constexpr std::int64_t kLeastBytes = 1024;
constexpr std::int64_t kLeastMemory = 256 << 20;

std::string line_of(const std::string& path) {
  std::string text = read_text(path).value_or("");
  return text.substr(0, text.find('\n'));
}

/// "48K", "32M": bytes.
std::optional<std::int64_t> bytes_of(std::string text) {
  std::int64_t unit = 1;
  if (text.ends_with('K')) unit = 1 << 10;
  if (text.ends_with('M')) unit = 1 << 20;
  if (unit > 1) text.pop_back();
  const auto number = parse_number<std::uint32_t>(text);
  if (!number || *number == 0) return std::nullopt;
  return static_cast<std::int64_t>(*number) * unit;
}

/// "0-3,8": how many these are; 0 for a text that is no such list.
int count_of(const std::string& list) {
  int count = 0;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string part = list.substr(begin, end - begin);
    const auto dash = part.find('-');
    const auto first = parse_number<std::uint16_t>(part.substr(0, dash));
    const auto last =
        dash == std::string::npos ? first : parse_number<std::uint16_t>(part.substr(dash + 1));
    if (!first || !last || *last < *first) return 0;
    count += *last - *first + 1;
    begin = end + 1;
  }
  return count;
}

std::optional<Cache> cache_of(const std::string& folder) {
  const auto level = parse_number<std::uint8_t>(line_of(folder + "/level"));
  const auto bytes = bytes_of(line_of(folder + "/size"));
  const int sharers = count_of(line_of(folder + "/shared_cpu_list"));
  if (!level || !bytes || sharers == 0 || line_of(folder + "/type") == "Instruction")
    return std::nullopt;
  return Cache{*level, *bytes, sharers};
}

}  // namespace

std::vector<Cache> caches_of_core(const std::string& folder) {
  std::vector<Cache> caches;
  for (int i = 0; i < kMostCaches; ++i) {
    if (const auto cache = cache_of(fmt::format("{}/index{}", folder, i))) caches.push_back(*cache);
  }
  std::sort(caches.begin(), caches.end(),
            [](const Cache& a, const Cache& b) { return a.level < b.level; });
  return caches;
}

std::vector<WorkingSet> working_sets(const std::vector<Cache>& caches, int threads, int cores,
                                     std::int64_t available_bytes) {
  std::vector<WorkingSet> sets;
  std::int64_t all = 0;     // bytes of the caches of one level that these cores have
  std::int64_t faster = 0;  // bytes that a thread has of the faster caches
  for (const Cache& cache : caches) {
    all = cache.bytes * ((cores + cache.sharers - 1) / cache.sharers);
    const std::int64_t own = cache.bytes / std::min(cache.sharers, threads);
    if (own / 2 > faster) sets.push_back({fmt::format("L{}", cache.level), own / 2});
    faster = std::max(faster, own);
  }
  if (caches.empty()) sets = {{"a cache", 16 << 10}, {"a cache", 256 << 10}};
  const std::int64_t most = available_bytes / 4;
  const std::int64_t wanted = std::min(std::max(4 * all, kLeastMemory), most) / threads;
  sets.push_back({"memory", std::max(wanted, kLeastBytes)});
  return sets;
}

}  // namespace shoal::apps
