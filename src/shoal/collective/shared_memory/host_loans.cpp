#include "shoal/collective/shared_memory/host_loans.h"

#include <atomic>
#include <bit>
#include <span>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::collective {
namespace {

/// The message of a rank about its part.
struct Offer {
  std::uint64_t region = 0;  ///< one more than Location::region; 0: peers cannot find it
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t free_slots = 0;  ///< a bit a slot
};
constexpr std::size_t kWords = sizeof(Offer) / sizeof(std::uint64_t);

class HostLoan final : public Loan {
 public:
  /// `number`: how often the slot was taken, this time included.
  HostLoan(std::shared_ptr<HostWorld> world, HostBlock block, std::vector<int> members, int rank,
           std::size_t slot, std::uint64_t number)
      : world_(std::move(world)),
        block_(block),
        members_(std::move(members)),
        rank_(rank),
        slot_(slot),
        number_(number) {}
  ~HostLoan() override { give_back(); }
  HostLoan(const HostLoan&) = delete;
  HostLoan& operator=(const HostLoan&) = delete;

  void find_part(const Offer& offer) {
    const Location place{static_cast<std::int32_t>(offer.region) - 1, offer.offset};
    parts_.emplace_back(world_->memory().resolve(place, offer.bytes), offer.bytes);
  }

  std::span<const std::byte> part(int rank) const override {
    return parts_.at(static_cast<std::size_t>(rank));
  }

  // The store releases this rank's reads of all parts (invariant 2). It happens once: a second one
  // might come when the slot is on loan again. Nobody waits for it, so nobody is woken.
  void give_back() override {
    if (given_back_.exchange(true)) return;
    block_.loans(rank_).given_back[slot_].store(number_, std::memory_order_release);
  }

  bool ended() const override {
    for (int r = 0; r < static_cast<int>(members_.size()); ++r)
      if (!given_back_by(r) && !gone(members_[r])) return false;
    return true;
  }

 private:
  bool given_back_by(int rank) const {
    return block_.loans(rank).given_back[slot_].load(std::memory_order_acquire) >= number_;
  }
  // A process that was killed gives nothing back. Processes are asked only once a failure is known:
  // it costs a system call.
  bool gone(int member) const {
    return world_->has_left(member) || (world_->ended() && world_->process_ended(member));
  }

  std::shared_ptr<HostWorld> world_;  ///< maps the table and the parts
  HostBlock block_;
  std::vector<int> members_;
  int rank_;
  std::size_t slot_;
  std::uint64_t number_;
  std::vector<std::span<const std::byte>> parts_;
  std::atomic<bool> given_back_{false};
};

}  // namespace

std::uint64_t HostLoans::free_slots() const {
  std::uint64_t free = ~std::uint64_t{0};
  static_assert(kLoans == 64);
  for (int r = 0; r < static_cast<int>(members_.size()); ++r) {
    const LoanLine& line = block_.loans(r);
    for (std::size_t slot = 0; slot < kLoans; ++slot) {
      if (line.given_back[slot].load(std::memory_order_acquire) != lent_[slot])
        free &= ~(std::uint64_t{1} << slot);
    }
  }
  return free;
}

std::shared_ptr<Loan> HostLoans::lend(Communicator& communicator, const void* data,
                                      std::size_t bytes, std::uint32_t tag) {
  // No bytes lie anywhere, so that a rank that has none does not keep the others from lending.
  Location place;
  if (bytes == 0) {
    place = {0, 0};
  } else if (data) {
    place = world_->memory().locate(data, bytes);
  }
  const Offer own{static_cast<std::uint64_t>(place.region + 1), place.offset, bytes, free_slots()};
  std::vector<Offer> all(members_.size());
  // The exchange also orders memory: what its owner has written to a part, peers read after it.
  communicator.wait(communicator.start({.kind = Kind::kAllGather,
                                        .type = ElementType::kU64,
                                        .buffer = {&own, all.data(), kWords},
                                        .tag = tag}));
  std::uint64_t free = ~std::uint64_t{0};
  for (const Offer& offer : all) {
    free &= offer.free_slots;
    if (offer.region == 0) free = 0;
  }
  if (free == 0) return nullptr;

  const auto slot = static_cast<std::size_t>(std::countr_zero(free));
  auto loan = std::make_shared<HostLoan>(world_, block_, members_, rank_, slot, ++lent_[slot]);
  try {
    for (const Offer& offer : all) loan->find_part(offer);
  } catch (const Error& error) {
    // A broken peer. The others have what they asked for, and hear of it by the abort.
    communicator.abort(error);
    throw;
  }
  return loan;
}

}  // namespace shoal::collective
