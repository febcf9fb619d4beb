#include "shoal/checkpoint/snapshot.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::checkpoint {

Snapshot::Snapshot(const std::vector<Range>& ranges, std::size_t staging_bytes, Staging staging)
    : staging_bytes_(staging_bytes), staging_(std::move(staging)) {
  std::size_t longest = 0;
  for (const Range& range : ranges) {
    first_.push_back(blocks_.size());
    for (std::size_t begin = 0; begin < range.bytes; begin += range.block_bytes) {
      blocks_.push_back({range.data + begin, std::min(range.block_bytes, range.bytes - begin)});
      longest = std::max(longest, blocks_.back().bytes);
    }
  }
  bounce_ = std::make_unique_for_overwrite<char[]>(longest);
  live_ = blocks_.size();
}

// A block goes one of two ways:
// kLive -> kReading -> kRead: the writer copies it out of the owner's memory;
// kLive -> kCopying -> kStaged: the owner copies it to staging, where the writer reads it later.
// The state changes under the lock, the bytes are copied outside it: a block in kReading or
// kCopying belongs to the side that has put it there. `live_` counts the blocks whose memory the
// writer still needs, those in kReading included, so the owner never changes bytes that are being
// copied.
const void* Snapshot::read(std::size_t range, std::size_t index) {
  Block& block = blocks_[first_[range] + index];
  std::unique_lock lock(mutex_);
  // The owner may be copying this very block. It holds no lock meanwhile, and wakes the writer when
  // the copy is done.
  changed_.wait(lock, [&] { return cancelled_ || block.state != State::kCopying; });
  if (cancelled_) throw Error(ErrorKind::kAborted, "checkpoint", "the save was cancelled");
  if (block.state == State::kStaged) return block.data;
  SHOAL_CHECK(block.state == State::kLive, "block {} of range {} is read twice", index, range);
  block.state = State::kReading;
  lock.unlock();
  std::memcpy(bounce_.get(), block.data, block.bytes);
  lock.lock();
  block.state = State::kRead;
  --live_;
  changed_.notify_all();
  return bounce_.get();
}

void Snapshot::rest(Duration duration) {
  std::unique_lock lock(mutex_);
  // A pause ends as soon as the owner waits: its time matters more than an even pace.
  changed_.wait_for(lock, duration, [&] { return cancelled_ || waiting_ > 0; });
}

std::vector<Snapshot::Block*> Snapshot::choose_staged() {
  std::vector<Block*> chosen;
  std::size_t left = staging_bytes_;
  // The writer reads from the front. Staging from the back leaves it the blocks that it comes to
  // next.
  for (auto block = blocks_.rbegin(); block != blocks_.rend() && !cancelled_; ++block) {
    if (block->state != State::kLive || block->bytes > left) continue;
    left -= block->bytes;
    --live_;
    block->state = State::kCopying;
    chosen.push_back(&*block);
  }
  return chosen;
}

void Snapshot::stage() {
  std::unique_lock lock(mutex_);
  const std::vector<Block*> chosen = choose_staged();
  ++waiting_;  // what did not fit is read at full speed, beside the copying
  changed_.notify_all();
  lock.unlock();
  // The chosen blocks are the owner's alone now: it takes memory and copies without the lock, while
  // the writer reads others.
  std::vector<const char*> copies;
  std::exception_ptr no_memory;
  try {
    copies = copy_to_staging(chosen);
  } catch (...) {
    no_memory = std::current_exception();
  }
  lock.lock();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    // Without a copy the writer, which may wait for this very block, reads the owner's memory.
    chosen[i]->state = no_memory ? State::kLive : State::kStaged;
    if (!no_memory) chosen[i]->data = copies[i];
  }
  if (no_memory) live_ += chosen.size();
  --waiting_;
  changed_.notify_all();
  if (no_memory) std::rethrow_exception(no_memory);
}

/// Returns where the copy of each block lies.
std::vector<const char*> Snapshot::copy_to_staging(const std::vector<Block*>& chosen) {
  std::vector<const char*> copies(chosen.size());
  if (chosen.empty()) return copies;
  std::vector<std::size_t> place(chosen.size() + 1);
  for (std::size_t i = 0; i < chosen.size(); ++i) place[i + 1] = place[i] + chosen[i]->bytes;
  char* const to = staging_(place.back());
  for (std::size_t i = 0; i < chosen.size(); ++i) copies[i] = to + place[i];
  at::parallel_for(0, static_cast<std::int64_t>(chosen.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i)
                       std::memcpy(to + place[i], chosen[i]->data, chosen[i]->bytes);
                   });
  return copies;
}

bool Snapshot::detach(Duration limit) {
  // Staging is filled once. Later calls, after a limit has passed, only wait.
  if (!std::exchange(staged_, true)) stage();
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.notify_all();
  const bool detached = changed_.wait_for(lock, limit, [&] { return cancelled_ || live_ == 0; });
  --waiting_;
  return detached;
}

void Snapshot::hurry() {
  // Never taken back: somebody waits until the end.
  const std::lock_guard lock(mutex_);
  ++waiting_;
  changed_.notify_all();
}

void Snapshot::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

}  // namespace shoal::checkpoint
