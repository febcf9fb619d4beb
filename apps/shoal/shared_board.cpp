#include "apps/shoal/shared_board.h"

#include <sys/mman.h>
#include <unistd.h>

#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

std::size_t bytes_of(int ranks) {
  return sizeof(train::RunLine) + static_cast<std::size_t>(ranks) * sizeof(train::RankLine);
}

}  // namespace

SharedBoard::SharedBoard(int ranks) : descriptor_(::memfd_create("shoal-board", 0)) {
  if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes_of(ranks))) != 0)
    throw system_error(ErrorKind::kResource, "launcher", "cannot make shared memory");
  map(ranks);
}

SharedBoard::SharedBoard(int descriptor, int ranks) : descriptor_(descriptor) { map(ranks); }

void SharedBoard::map(int ranks) {
  bytes_ = bytes_of(ranks);
  // Zeros of a new file are what every member starts with. The launcher keeps its mapping: what a
  // rank wrote last stays when it is killed.
  memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory_ == MAP_FAILED)
    throw system_error(ErrorKind::kResource, "launcher", "cannot map shared memory");
  auto* run = static_cast<train::RunLine*>(memory_);
  board_ = {run, {reinterpret_cast<train::RankLine*>(run + 1), static_cast<std::size_t>(ranks)}};
}

SharedBoard::~SharedBoard() {
  ::munmap(memory_, bytes_);
  ::close(descriptor_);
}

}  // namespace shoal::apps
