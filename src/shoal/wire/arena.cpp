#include "shoal/wire/arena.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "shoal/base/check.h"
#include "shoal/wire/host_memory.h"

namespace shoal::wire {
namespace {

constexpr std::uint32_t kLive = 0x4c495645;   // "LIVE"
constexpr std::uint32_t kFreed = 0x46524545;  // "FREE"
constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kGiB = 1 << 30;

std::size_t default_virtual_bytes() {
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::size_t bytes = std::min(4 * memory, 512 * kGiB);
  rlimit limit{};
  // Under a limit the arena takes an eighth of the address space: peers map their arenas here too.
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    bytes = std::min<std::size_t>(bytes, limit.rlim_cur / 8);
  return bytes;
}

}  // namespace

/// Precedes every block, in a cache line of its own, so that a free finds the size class. `state`
/// shows a block that is freed twice or whose header was overwritten.
struct Arena::Header {
  std::uint32_t state;
  std::uint32_t size_class;
  std::uint32_t category;
  std::uint32_t sharers;  ///< ranks that count a part of it each
  std::uint64_t bytes;    ///< this rank's part of what was asked for, in whole cache lines
};

std::string Ledger::text() const {
  std::string text;
  for (int i = 0; i < kMemoryCategories; ++i) {
    if (categories[i].in_use > 0) {
      text += fmt::format("{} {:.1f} MiB, ", name(static_cast<MemoryCategory>(i)),
                          static_cast<double>(categories[i].in_use) / kMiB);
    }
  }
  return text + fmt::format(
                    "{:.1f} MiB in all of a limit of {:.1f} MiB ({:.1f} MiB more is held free, "
                    "{:.1f} MiB lost to rounding)",
                    static_cast<double>(total.in_use) / kMiB, static_cast<double>(limit) / kMiB,
                    static_cast<double>(held) / kMiB, static_cast<double>(rounding) / kMiB);
}

Arena::Arena(const Options& options)
    : segment_(SharedSegment::create("shoal-arena", options.virtual_bytes > 0
                                                        ? options.virtual_bytes
                                                        : default_virtual_bytes())),
      limit_(options.limit_bytes > 0 ? options.limit_bytes
                                     : share_of_memory_bytes(options.ranks_on_host)),
      poison_(options.poison) {
  static_assert(sizeof(Header) <= kAlignment);
  free_.resize(class_of(segment_.bytes()) + 2);
  dry_.resize(free_.size());
}

Arena::~Arena() = default;

// Size classes are whole cache lines, eight in each power of two: 1 to 8 lines, then (8 + k) << e
// for k from 1 to 8.
std::size_t Arena::class_of(std::size_t bytes) {
  const std::size_t lines = (bytes + kAlignment - 1) / kAlignment;
  if (lines <= 8) return lines;
  const int shift = std::bit_width(lines - 1) - 4;
  return static_cast<std::size_t>(shift) * 8 + ((lines - 1) >> shift) + 1;
}

std::size_t Arena::class_bytes(std::size_t size_class) {
  if (size_class <= 8) return size_class * kAlignment;
  const std::size_t shift = (size_class - 1) / 8 - 1;
  return ((size_class - 1) % 8 + 9) << shift << 6;
}

// Hands out addresses that were never used. Null: there are not enough left.
void* Arena::carve(std::size_t size_class) {
  const std::size_t bytes = class_bytes(size_class) + kAlignment;
  if (segment_.bytes() - next_ < bytes) return nullptr;
  auto* header = reinterpret_cast<Header*>(segment_.data() + next_);
  next_ += bytes;
  return header;
}

// Only blocks in use count: those that are free can be trimmed.
void Arena::require_room(std::size_t bytes, MemoryCategory category) const {
  if (bytes <= segment_.bytes() && taken_ + bytes <= limit_) return;
  const Ledger ledger{usage_, total_, held_, taken_ - total_.in_use, limit_};
  throw Error(ErrorKind::kResource, "arena",
              fmt::format("no room for {:.1f} MiB ({}): {}", static_cast<double>(bytes) / kMiB,
                          name(category), ledger.text()))
      .hint("a smaller micro-batch, activation checkpointing or sharding needs less");
}

void* Arena::allocate(std::size_t bytes, std::size_t sharers) {
  // A forked child must not hand out the arena's addresses: its mapping is a private copy, and the
  // lock may have been held by a thread that does not exist here.
  if (child_.load(std::memory_order_relaxed)) {
    void* p = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (!p) {
      throw Error(ErrorKind::kResource, "arena",
                  fmt::format("the C library has no {} bytes", bytes));
    }
    return p;
  }
  const MemoryCategory category = memory_context().category;
  const std::lock_guard lock(mutex_);
  if (!retired_.empty()) sweep_locked();
  require_room(bytes / sharers, category);
  const std::size_t size_class = class_of(bytes);
  const std::size_t size = class_bytes(size_class);
  // First a freed block that has its pages, the last freed first, which is likely in the cache.
  // Then a block whose pages were given back. New addresses only where neither exists, because
  // addresses are never given back.
  Header* header = nullptr;
  if (auto& list = free_[size_class]; !list.empty()) {
    header = reinterpret_cast<Header*>(segment_.data() + list.back());
    list.pop_back();
    held_ -= size;
  } else {
    // The block brings fresh pages: those that free blocks hold are given back first.
    if (taken_ + held_ + size / sharers > limit_) trim_locked();
    if (auto& dry = dry_[size_class]; !dry.empty()) {
      header = reinterpret_cast<Header*>(segment_.data() + dry.back());
      dry.pop_back();
    } else {
      header = static_cast<Header*>(carve(size_class));
    }
    if (!header) {
      throw Error(ErrorKind::kResource, "arena",
                  fmt::format("its {:.1f} GiB of addresses are used up",
                              static_cast<double>(segment_.bytes()) / kGiB));
    }
  }
  // The limit counts whole size classes (`size`), the ledger what was asked for.
  const std::size_t asked = (bytes / sharers + kAlignment - 1) / kAlignment * kAlignment;
  *header = {kLive, static_cast<std::uint32_t>(size_class), static_cast<std::uint32_t>(category),
             static_cast<std::uint32_t>(sharers), asked};
  take(category, asked, size / sharers);
  return reinterpret_cast<std::byte*>(header) + kAlignment;
}

void Arena::charge(std::size_t bytes) {
  const MemoryCategory category = memory_context().category;
  const std::lock_guard lock(mutex_);
  require_room(bytes, category);
  if (taken_ + held_ + bytes > limit_) trim_locked();
  take(category, bytes, bytes);
}

void Arena::discharge(std::size_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  give_back(category, bytes, bytes);
}

// `asked` is what the caller wanted, in whole cache lines; `size` is what its size class takes.
void Arena::take(MemoryCategory category, std::size_t asked, std::size_t size) {
  taken_ += size;
  total_.in_use += asked;
  count(category, asked);
  if (total_.in_use > total_.peak) note_peak();
}

void Arena::give_back(MemoryCategory category, std::size_t asked, std::size_t size) {
  taken_ -= size;
  total_.in_use -= asked;
  usage_[static_cast<int>(category)].in_use -= asked;
}

void Arena::note_peak() {
  total_.peak = total_.at_peak = total_.in_use;
  for (Usage& usage : usage_) usage.at_peak = usage.in_use;
}

void Arena::count(MemoryCategory category, std::size_t bytes) {
  Usage& usage = usage_[static_cast<int>(category)];
  usage.in_use += bytes;
  usage.peak = std::max(usage.peak, usage.in_use);
}

void Arena::retag(void* block, MemoryCategory from, MemoryCategory to) {
  if (!block || !contains(block) || child_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(block) - kAlignment);
  SHOAL_CHECK(header->state == kLive, "the block at offset {} is not in use", offset(block));
  // A block that was moved to another category meanwhile stays there.
  if (header->category != static_cast<std::uint32_t>(from)) return;
  header->category = static_cast<std::uint32_t>(to);
  usage_[static_cast<int>(from)].in_use -= header->bytes;
  count(to, header->bytes);
}

void Arena::free(void* block) {
  if (!block) return;
  // LibTorch frees a block with the allocator that is current at that time, so blocks that are
  // older than the arena, and those of a forked child, come here too.
  if (!contains(block)) return std::free(block);
  // A forked child ignores frees of the blocks that it inherited: the lock may have been held by a
  // thread that does not exist here.
  if (child_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  free_locked(block);
}

// Peers that read the block in place count themselves in `holders`. No call tells when the
// count falls to zero; the next allocation looks.
void Arena::free_when_unheld(void* block, const std::atomic<int>* holders) {
  const std::lock_guard lock(mutex_);
  retired_.emplace_back(block, holders);
}

// A holder's decrement is sequentially consistent, so its reads of the block happened before the
// block is handed out again.
void Arena::sweep_locked() {
  std::erase_if(retired_, [this](const auto& entry) {
    if (entry.second->load() > 0) return false;
    free_locked(entry.first);
    return true;
  });
}

void Arena::free_locked(void* block) {
  auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(block) - kAlignment);
  SHOAL_CHECK(header->state == kLive,
              "the block at offset {} is freed twice, or its header was overwritten (state {:#x})",
              offset(block), header->state);
  header->state = kFreed;
  const std::size_t size = class_bytes(header->size_class);
  if (poison_) std::memset(block, 0xcb, size);
  give_back(static_cast<MemoryCategory>(header->category), header->bytes, size / header->sharers);
  held_ += size;
  free_[header->size_class].push_back(offset(header));
}

bool Arena::contains(const void* p, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  const auto begin = reinterpret_cast<std::uintptr_t>(segment_.data());
  return at >= begin && at - begin < segment_.bytes() && bytes <= segment_.bytes() - (at - begin);
}

Ledger Arena::ledger() const {
  const std::lock_guard lock(mutex_);
  return {usage_, total_, held_, taken_ - total_.in_use, limit_};
}

void Arena::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Usage& usage : usage_) usage.peak = usage.in_use;
  note_peak();
}

void Arena::trim_locked() {
  for (std::size_t c = 0; c < free_.size(); ++c) {
    const std::size_t size = class_bytes(c);
    if (size < 64 << 10) continue;  // a few pages are not worth a system call
    // The header keeps its page: only whole pages inside the block are punched out.
    for (const std::uint64_t at : free_[c]) {
      segment_.punch(at + kAlignment, size);
      dry_[c].push_back(at);
      held_ -= size;
    }
    free_[c].clear();
  }
}

// The order matters: after the flag is set no free touches the mapping that is replaced next.
void Arena::enter_child() {
  child_.store(true);
  segment_.make_private();
}

}  // namespace shoal::wire
