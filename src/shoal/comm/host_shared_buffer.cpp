#include "shoal/comm/host_shared_buffer.h"

#include <ATen/ops/from_blob.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"

namespace shoal::comm {
namespace {

using collective::HostCommunicator;
using collective::Location;

/// In front of the shared bytes.
struct alignas(64) Front {
  std::atomic<int> holders;  ///< ranks that still use the block
};

class HostSharedBuffer final : public SharedBuffer,
                               public std::enable_shared_from_this<HostSharedBuffer> {
 public:
  HostSharedBuffer(std::shared_ptr<HostCommunicator> communicator,
                   std::shared_ptr<wire::Arena> arena, std::byte* block, std::size_t bytes,
                   bool frees, bool threads)
      : communicator_(std::move(communicator)),
        arena_(std::move(arena)),
        block_(block),
        bytes_(bytes),
        frees_(frees),
        threads_(threads) {}

  ~HostSharedBuffer() override {
    if (charged_ > 0) arena_->discharge(charged_, category_);
    auto* front = reinterpret_cast<Front*>(block_);
    const bool last = front->holders.fetch_sub(1) == 1;
    if (!frees_) return;
    if (!last) {
      if (arena_ && !threads_) {
        arena_->free_when_unheld(block_,
                                 &front->holders);  // peers still read; the arena looks again later
      }
      return;
    }
    if (arena_) {
      arena_->free(block_);
    } else {
      std::free(block_);
    }
  }

  /// Counts this rank's part of a block that is the first's.
  void charge(std::size_t bytes) {
    arena_->charge(bytes);
    charged_ = bytes, category_ = memory_context().category;
  }

  std::size_t bytes() const override { return bytes_; }
  void* data() const override { return block_ + sizeof(Front); }

  at::Tensor tensor(std::size_t offset_bytes, at::IntArrayRef shape,
                    at::ScalarType type) const override {
    std::size_t need = c10::elementSize(type);
    for (const std::int64_t d : shape) need *= static_cast<std::size_t>(d);
    SHOAL_USER_CHECK(offset_bytes % wire::Arena::kAlignment == 0 && offset_bytes <= bytes_ &&
                         need <= bytes_ - offset_bytes,
                     "shared_buffer", "{} bytes at offset {} of a buffer of {}", need, offset_bytes,
                     bytes_);
    const auto self = shared_from_this();
    return at::from_blob(
        block_ + sizeof(Front) + offset_bytes, shape, [self](void*) {},
        at::TensorOptions().dtype(type));
  }

  void publish() override {
    meet();
    ++epoch_;
  }
  void end_reading() override { meet(); }
  std::uint64_t epoch() const override { return epoch_; }

 private:
  void meet() { communicator_->wait(communicator_->start({.kind = collective::Kind::kBarrier})); }

  std::shared_ptr<HostCommunicator> communicator_;
  std::shared_ptr<wire::Arena> arena_;
  std::byte* block_;
  std::size_t bytes_;
  bool frees_;  ///< in this process: the owner, or any thread
  bool threads_;
  std::size_t charged_ = 0;
  MemoryCategory category_ = MemoryCategory::kTemporary;
  std::uint64_t epoch_ = 0;
};

}  // namespace

std::shared_ptr<SharedBuffer> make_host_shared_buffer(
    std::shared_ptr<HostCommunicator> communicator, std::shared_ptr<wire::Arena> arena,
    bool threads, std::size_t bytes) {
  const bool first = communicator->rank() == 0;
  const std::size_t whole = (bytes + 63) / 64 * 64 + sizeof(Front);
  // Every rank counts its part, so that the limit of none stands for all. Threads have one arena
  // and one limit.
  const std::size_t sharers = threads ? 1 : static_cast<std::size_t>(communicator->size());
  std::byte* block = nullptr;
  Location place;
  if (first && (arena || threads)) {
    block = static_cast<std::byte*>(arena ? arena->allocate(whole, sharers)
                                          : std::aligned_alloc(64, whole));
    if (!block) {
      throw Error(ErrorKind::kResource, "shared_buffer",
                  fmt::format("no memory for {} bytes", bytes));
    }
    std::memset(block, 0, whole);
    new (block) Front{communicator->size()};
    place = communicator->world().memory().locate(block, whole);
  }
  std::array<std::uint64_t, 2> message{static_cast<std::uint64_t>(place.region + 1), place.offset};
  communicator->wait(communicator->start({.kind = collective::Kind::kBroadcast,
                                          .type = ElementType::kU64,
                                          .buffer = {message.data(), message.data(), 2},
                                          .peer = 0}));
  if (message[0] == 0) return nullptr;
  place = {static_cast<std::int32_t>(message[0]) - 1, message[1]};
  if (!first) block = communicator->world().memory().resolve(place, whole);
  // Threads share one arena, so the last to leave frees, whoever it is.
  const auto buffer = std::make_shared<HostSharedBuffer>(std::move(communicator), arena, block,
                                                         bytes, first || threads, threads);
  if (arena && !first && !threads) buffer->charge(whole / sharers);
  return buffer;
}

}  // namespace shoal::comm
