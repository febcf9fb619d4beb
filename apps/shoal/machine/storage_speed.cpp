#include "apps/shoal/machine/storage_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>

#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/file.h"

namespace shoal::apps {
namespace {

using checkpoint::format::File;

constexpr std::size_t kChunk = std::size_t{8} << 20;

/// Fills a chunk with pseudorandom numbers: splitmix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014).
void fill(std::vector<std::uint64_t>& chunk, std::uint64_t seed) {
  for (std::uint64_t& word : chunk) {
    seed += 0x9E3779B97F4A7C15;
    std::uint64_t mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    word = mixed ^ (mixed >> 31);
  }
}

struct CloseDescriptor {
  int descriptor = -1;
  explicit CloseDescriptor(int opened) : descriptor(opened) {}
  ~CloseDescriptor() {
    if (descriptor >= 0) ::close(descriptor);
  }
  CloseDescriptor(const CloseDescriptor&) = delete;
  CloseDescriptor& operator=(const CloseDescriptor&) = delete;
};

/// The file of one writer.
class Writer {
 public:
  Writer(const StorageCase& test, int number)
      : chunk_(kChunk / sizeof(std::uint64_t)),
        wanted_(std::max<std::int64_t>(1, test.bytes / test.writers / kUnit) * kUnit),
        path_(fmt::format("{}/shoal-bench-{}-{}", test.folder, ::getpid(), number)),
        out_(File::create(path_)),
        in_(File::open(path_)),
        cache_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    ::unlink(path_.c_str());
    fill(chunk_, static_cast<std::uint64_t>(number) + 1);
    out_.reserve(wanted_);
  }

  void write(const Deadline& deadline) {
    do {
      // No two chunks are equal.
      chunk_.front() = static_cast<std::uint64_t>(written_);
      const std::size_t part = part_at(written_, wanted_);
      out_.append(chunk_.data(), part);
      written_ += static_cast<std::int64_t>(part);
    } while (written_ < wanted_ && !deadline.passed());
    out_.close(true);
  }

  /// Drops what the page cache holds of the file. Returns how many bytes are there afterwards.
  double drop() const {
    ::posix_fadvise(cache_.descriptor, 0, 0, POSIX_FADV_DONTNEED);
    void* const mapped = ::mmap(nullptr, static_cast<std::size_t>(written_), PROT_READ, MAP_SHARED,
                                cache_.descriptor, 0);
    if (mapped == MAP_FAILED) return 0;
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((static_cast<std::size_t>(written_) + page - 1) / page);
    double cached = 0;
    if (::mincore(mapped, static_cast<std::size_t>(written_), pages.data()) == 0) {
      for (const unsigned char one : pages) cached += (one & 1) * static_cast<double>(page);
    }
    ::munmap(mapped, static_cast<std::size_t>(written_));
    return cached;
  }

  void read() {
    for (std::int64_t offset = 0; offset < written_;) {
      const std::size_t part = part_at(offset, written_);
      in_.read(chunk_.data(), offset, part);
      if (chunk_.front() != static_cast<std::uint64_t>(offset)) {
        throw Error(ErrorKind::kData, "bench",
                    fmt::format("'{}' holds other bytes at {} than were written", path_, offset));
      }
      offset += static_cast<std::int64_t>(part);
    }
  }

  double written() const { return static_cast<double>(written_); }

 private:
  static constexpr std::int64_t kUnit = 4096;

  static std::size_t part_at(std::int64_t offset, std::int64_t end) {
    return static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(kChunk), end - offset));
  }

  std::vector<std::uint64_t> chunk_;
  std::int64_t wanted_;
  std::int64_t written_ = 0;
  std::string path_;
  File out_;
  File in_;
  CloseDescriptor cache_;
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

StorageSpeed storage_speed(const StorageCase& test) {
  std::vector<std::unique_ptr<Writer>> writers;
  for (int i = 0; i < test.writers; ++i) writers.push_back(std::make_unique<Writer>(test, i));
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
  for (int i = 0; i < rounds; ++i) speeds.push_back(storage_speed(test));
  return speeds;
}

double median_of(const std::vector<StorageSpeed>& rounds, double (StorageSpeed::*of)() const) {
  SHOAL_CHECK(!rounds.empty(), "no round of a measurement");
  std::vector<double> values;
  for (const StorageSpeed& round : rounds) values.push_back((round.*of)());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace shoal::apps
