#include "apps/shoal/machine/storage_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shoal::apps {
namespace {

/// From this part on the figure of reading is one of memory.
constexpr double kCachedPart = 0.01;

std::string seconds_text(double bytes, double bandwidth) {
  if (bandwidth <= 0) return "?";
  const double seconds = bytes / bandwidth;
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

std::string checkpoint_text(const StorageTable& table) {
  const plan::Storage measured = measured_storage(table.rounds);
  const double bytes = table.checkpoint_bytes;
  std::string text = fmt::format(
      "\nA checkpoint of {} has {:.4g} MB: {} to write and {} to read", table.job, bytes / 1e6,
      seconds_text(bytes, measured.write_bandwidth), seconds_text(bytes, measured.read_bandwidth));
  const plan::Storage& planned = table.planned;
  if (planned.write_bandwidth <= 0 && planned.read_bandwidth <= 0)
    return text + fmt::format("; {} says nothing of storage\n", table.planned_by);
  return text + fmt::format("; planned by {}: {} and {}\n", table.planned_by,
                            seconds_text(bytes, planned.write_bandwidth),
                            seconds_text(bytes, planned.read_bandwidth));
}

}  // namespace

plan::Storage measured_storage(const std::vector<StorageSpeed>& rounds) {
  return {.read_bandwidth = median_of(rounds, &StorageSpeed::read_bandwidth),
          .write_bandwidth = median_of(rounds, &StorageSpeed::write_bandwidth)};
}

double part_from_memory(const std::vector<StorageSpeed>& rounds) {
  double most = 0;
  for (const StorageSpeed& round : rounds) most = std::max(most, round.cached_part);
  return most > kCachedPart ? most : 0;
}

std::string storage_text(const StorageTable& table) {
  const StorageCase& test = table.test;
  std::string text = fmt::format(
      "{}: written by {} rank{} as checkpoints are and synced, read back without the page cache\n"
      "{:>9} {:>9} {:>9} {:>9}\n",
      test.folder, test.writers, test.writers == 1 ? "" : "s", "round", "MB", "write",
      "read, GB/s");
  for (std::size_t i = 0; i < table.rounds.size(); ++i) {
    const StorageSpeed& round = table.rounds[i];
    text += fmt::format("{:>9} {:>9.4g} {:>9.3g} {:>9.3g}\n", i + 1, round.bytes / 1e6,
                        round.write_bandwidth() / 1e9, round.read_bandwidth() / 1e9);
  }
  const plan::Storage measured = measured_storage(table.rounds);
  text += fmt::format("{:>9} {:>9} {:>9.3g} {:>9.3g}\n", "median", "",
                      measured.write_bandwidth / 1e9, measured.read_bandwidth / 1e9);
  if (table.planned.write_bandwidth > 0 || table.planned.read_bandwidth > 0) {
    text += fmt::format("{:>9} {:>9} {:>9.3g} {:>9.3g}  by {}\n", "planned", "",
                        table.planned.write_bandwidth / 1e9, table.planned.read_bandwidth / 1e9,
                        table.planned_by);
  }
  if (const double cached = part_from_memory(table.rounds); cached > 0) {
    text += fmt::format(
        "Up to {:.0f} % of what was read was still in memory, where this file system keeps it: the "
        "figure of reading is not the disk's.\n",
        100 * cached);
  }
  return table.job.empty() ? text : text + checkpoint_text(table);
}

std::string storage_json(const StorageTable& table) {
  nlohmann::ordered_json rounds = nlohmann::ordered_json::array();
  for (const StorageSpeed& round : table.rounds) {
    rounds.push_back({{"bytes", round.bytes},
                      {"write_s", round.write_s},
                      {"read_s", round.read_s},
                      {"cached_part", round.cached_part}});
  }
  const auto json = [](const plan::Storage& storage) {
    return nlohmann::ordered_json{{"write_bytes_per_s", storage.write_bandwidth},
                                  {"read_bytes_per_s", storage.read_bandwidth}};
  };
  nlohmann::ordered_json all{{"folder", table.test.folder},
                             {"writers", table.test.writers},
                             {"rounds", std::move(rounds)},
                             {"storage", json(measured_storage(table.rounds))},
                             {"planned_storage", json(table.planned)},
                             {"planned_by", table.planned_by}};
  if (!table.job.empty())
    all["checkpoint"] = {{"job", table.job}, {"bytes", table.checkpoint_bytes}};
  return all.dump() + "\n";
}

}  // namespace shoal::apps
