#include "apps/shoal/rank_progress.h"

#include <sys/mman.h>
#include <unistd.h>

#include "shoal/base/system_error.h"

namespace shoal::apps {

static_assert(std::atomic<std::int64_t>::is_always_lock_free,
              "counters are shared between processes");

RankProgress::RankProgress(int ranks) : descriptor_(::memfd_create("shoal-progress", 0)) {
  if (descriptor_ < 0 ||
      ::ftruncate(descriptor_, static_cast<off_t>(ranks * sizeof(std::atomic<std::int64_t>))) != 0)
    throw system_error(ErrorKind::kResource, "launcher", "cannot make shared memory");
  map(ranks);
}

RankProgress::RankProgress(int descriptor, int ranks) : descriptor_(descriptor) { map(ranks); }

void RankProgress::map(int ranks) {
  bytes_ = ranks * sizeof(std::atomic<std::int64_t>);
  // Zeros of a new file are counters at 0. The launcher keeps its mapping: what a rank wrote last
  // stays when it is killed.
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED)
    throw system_error(ErrorKind::kResource, "launcher", "cannot map shared memory");
  steps_ = static_cast<std::atomic<std::int64_t>*>(memory);
}

RankProgress::~RankProgress() {
  ::munmap(steps_, bytes_);
  ::close(descriptor_);
}

}  // namespace shoal::apps
