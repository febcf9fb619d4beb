#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::apps {

/// Files that are written and read back in `folder`, which exists.
struct StorageCase {
  std::string folder;
  std::int64_t bytes = 0;  ///< of all writers together
  int writers = 1;         ///< at the same time, each with a file of its own
  double seconds = 20;     ///< writing stops then, with fewer bytes
};

/// One round of it.
struct StorageSpeed {
  double bytes = 0;        ///< that were written and read back
  double write_s = 0;      ///< until all of it is on the disk (fsync)
  double read_s = 0;       ///< with the page cache dropped as far as an ordinary user can
  double cached_part = 0;  ///< of it, what was still in the page cache when reading began

  double write_bandwidth() const { return bytes / write_s; }
  double read_bandwidth() const { return bytes / read_s; }
};

/// Writes as checkpoints are written (checkpoint/format/file.h: past the page cache where the file
/// system lets it), and reads back as they are read, through the page cache. What is written can
/// neither be compressed nor be shared with another file or `round` (storage_pattern.h), and each
/// block of what is read is looked at. The files have no name any more while they are written, so
/// that nothing is left of them however the process ends. Throws Error(output) where it cannot
/// write, and Error(data) where it reads something else than it has written.
StorageSpeed storage_speed(const StorageCase& test, int round = 0);

/// A round writes so much unless the user says otherwise, and there are so many rounds.
inline constexpr std::int64_t kStorageBytes = std::int64_t{1} << 30;
inline constexpr int kStorageRounds = 3;

/// Returns so many rounds of it. Throws as above.
std::vector<StorageSpeed> storage_rounds(const StorageCase& test, int rounds);

/// Returns the median of what `of` gives for the rounds. Throws Error(internal) for none.
double median_of(const std::vector<StorageSpeed>& rounds, double (StorageSpeed::*of)() const);

}  // namespace shoal::apps
