#include "apps/shoal/machine/storage_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <future>
#include <memory>

#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/machine/storage_pattern.h"
#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/base/hash.h"
#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/wire/descriptor.h"

namespace shoal::apps {
namespace {

using checkpoint::format::File;

constexpr std::int64_t kBlock = StoragePattern::kBlockBytes;
constexpr std::int64_t kChunk = std::int64_t{8} << 20;

/// The file of one writer.
class Writer {
 public:
  Writer(const StorageCase& test, int round, int number)
      : pattern_(kChunk, splitmix64(static_cast<std::uint64_t>(round) * kMostRanks +
                                    static_cast<std::uint64_t>(number))),
        wanted_(std::max<std::int64_t>(1, test.bytes / test.writers / kBlock) * kBlock),
        path_(fmt::format("{}/shoal-bench-{}-{}", test.folder, ::getpid(), number)),
        out_(File::create(path_)),
        in_(File::open(path_)),
        cache_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    const int failure = cache_.get() < 0 ? errno : 0;
    ::unlink(path_.c_str());
    if (failure != 0) {
      errno = failure;
      throw system_error(ErrorKind::kOutput, "bench", fmt::format("cannot open '{}'", path_));
    }
    out_.reserve(wanted_);
  }

  void write(const Deadline& deadline) {
    do {
      pattern_.move_to(written_);
      const std::int64_t part = std::min(kChunk, wanted_ - written_);
      out_.append(pattern_.data(), static_cast<std::size_t>(part));
      written_ += part;
    } while (written_ < wanted_ && !deadline.passed());
    out_.close(true);
  }

  /// Drops what the page cache holds of the file. Returns how many bytes are there afterwards: all
  /// where the system does not say.
  double drop() const {
    ::posix_fadvise(cache_.get(), 0, 0, POSIX_FADV_DONTNEED);
    const auto bytes = static_cast<std::size_t>(written_);
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, cache_.get(), 0);
    if (mapped == MAP_FAILED) return written();
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((bytes + page - 1) / page);
    double cached = written();
    if (::mincore(mapped, bytes, pages.data()) == 0) {
      cached = 0;
      for (const unsigned char one : pages) cached += (one & 1) * static_cast<double>(page);
    }
    ::munmap(mapped, bytes);
    return cached;
  }

  void read() {
    for (std::int64_t offset = 0; offset < written_;) {
      const std::int64_t part = std::min(kChunk, written_ - offset);
      in_.read(pattern_.data(), offset, static_cast<std::size_t>(part));
      if (const auto wrong = pattern_.first_wrong(offset, part)) {
        throw Error(ErrorKind::kData, "bench",
                    fmt::format("'{}' holds other bytes at {} than were written", path_, *wrong));
      }
      offset += part;
    }
  }

  double written() const { return static_cast<double>(written_); }

 private:
  StoragePattern pattern_;
  std::int64_t wanted_;
  std::int64_t written_ = 0;
  std::string path_;
  File out_;
  File in_;
  wire::Descriptor cache_;
};

/// Runs it on all writers at the same time and returns the seconds until the last one is done.
double together(std::vector<std::unique_ptr<Writer>>& writers,
                const std::function<void(Writer&)>& run) {
  const auto begin = Clock::now();
  std::vector<std::future<void>> under_way;
  for (auto& writer : writers)
    under_way.push_back(std::async(std::launch::async, run, std::ref(*writer)));
  for (auto& one : under_way) one.get();
  return to_seconds(Clock::now() - begin);
}

}  // namespace

StorageSpeed storage_speed(const StorageCase& test, int round) {
  std::vector<std::unique_ptr<Writer>> writers;
  for (int i = 0; i < test.writers; ++i)
    writers.push_back(std::make_unique<Writer>(test, round, i));
  StorageSpeed speed;
  const Deadline deadline = Deadline::in(from_seconds(test.seconds));
  speed.write_s = together(writers, [&](Writer& writer) { writer.write(deadline); });
  double cached = 0;
  for (const auto& writer : writers) {
    speed.bytes += writer->written();
    cached += writer->drop();
  }
  speed.cached_part = std::min(cached / speed.bytes, 1.0);
  speed.read_s = together(writers, [](Writer& writer) { writer.read(); });
  return speed;
}

std::vector<StorageSpeed> storage_rounds(const StorageCase& test, int rounds) {
  std::vector<StorageSpeed> speeds;
  for (int i = 0; i < rounds; ++i) speeds.push_back(storage_speed(test, i));
  return speeds;
}

double median_of(const std::vector<StorageSpeed>& rounds, double (StorageSpeed::*of)() const) {
  SHOAL_CHECK(!rounds.empty(), "no round of a measurement");
  std::vector<double> values;
  for (const StorageSpeed& round : rounds) values.push_back((round.*of)());
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace shoal::apps
