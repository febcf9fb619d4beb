#include "shoal/collective/shared_memory/host_shared_memory.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "shoal/base/memory_category.h"

namespace shoal::collective {
namespace {

/// Lies in front of the shared bytes.
struct alignas(64) Front {
  std::atomic<int> holders;  ///< ranks that still use the block
};

/// This rank's hold on a block. The last holder frees the block: among threads, which have one
/// arena and one C library, whoever that is; among processes the owner, whose arena frees it later
/// while peers still read.
class SharedBlock {
 public:
  SharedBlock(std::shared_ptr<HostWorld> world, std::shared_ptr<wire::Arena> arena,
              std::byte* block, bool owner)
      : world_(std::move(world)), arena_(std::move(arena)), block_(block), owner_(owner) {}
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  ~SharedBlock() {
    if (charged_ > 0) arena_->discharge(charged_, category_);
    std::atomic<int>& holders = reinterpret_cast<Front*>(block_)->holders;
    // Sequentially consistent: this rank's accesses to the block come before the decrement, and
    // those of all other holders before what the last one does next.
    const bool last = holders.fetch_sub(1) == 1;
    const bool threads = world_->of_threads();
    if (last && (owner_ || threads)) {
      free_block();
    } else if (owner_ && !threads) {
      arena_->free_when_unheld(block_, &holders);
    }
  }

  /// Counts this rank's part of a block that lies in the arena of another.
  void charge(std::size_t bytes) {
    arena_->charge(bytes);
    charged_ = bytes;
    category_ = memory_context().category;
  }
  std::byte* data() const { return block_ + sizeof(Front); }

 private:
  void free_block() {
    if (arena_) {
      arena_->free(block_);
    } else {
      std::free(block_);
    }
  }

  std::shared_ptr<HostWorld> world_;  ///< maps the block
  std::shared_ptr<wire::Arena> arena_;
  std::byte* block_;
  bool owner_;
  std::size_t charged_ = 0;
  MemoryCategory category_ = MemoryCategory::kTemporary;
};

}  // namespace

std::shared_ptr<std::byte> HostSharedMemory::allocate(std::size_t bytes) {
  const bool threads = world_->of_threads();
  const bool first = communicator_.rank() == 0;
  const std::size_t whole = (bytes + 63) / 64 * 64 + sizeof(Front);
  // Every rank counts its part, so that the limit of none stands for all. Threads have one arena
  // and one limit.
  const std::size_t sharers = threads ? 1 : static_cast<std::size_t>(communicator_.size());
  std::byte* block = nullptr;
  Location place;
  if (first && (arena_ || threads)) {
    block = static_cast<std::byte*>(arena_ ? arena_->allocate(whole, sharers)
                                           : std::aligned_alloc(64, whole));
    if (!block) {
      throw Error(ErrorKind::kResource, "shared_buffer",
                  fmt::format("no memory for {} bytes", bytes));
    }
    std::memset(block, 0, whole);
    new (block) Front{communicator_.size()};
    place = world_->memory().locate(block, whole);
  }
  // The broadcast tells where the block lies, and is the point after which all ranks see its zeros
  // and its count of holders.
  std::array<std::uint64_t, 2> message{static_cast<std::uint64_t>(place.region + 1), place.offset};
  communicator_.wait(communicator_.start({.kind = Kind::kBroadcast,
                                          .type = ElementType::kU64,
                                          .buffer = {message.data(), message.data(), 2},
                                          .peer = 0}));
  if (message[0] == 0) return nullptr;
  place = {static_cast<std::int32_t>(message[0]) - 1, message[1]};
  if (!first) block = world_->memory().resolve(place, whole);
  // The hold exists before `charge`, which may throw: its destructor then drops this rank's share.
  const auto held = std::make_shared<SharedBlock>(world_, arena_, block, first);
  if (arena_ && !first && !threads) held->charge(whole / sharers);
  return {held, held->data()};
}

bool HostSharedMemory::visible(const void* data, std::size_t bytes) const {
  return world_->memory().locate(data, bytes).visible();
}

}  // namespace shoal::collective
