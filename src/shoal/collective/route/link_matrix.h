#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shoal::collective {

/// The speed of one direction of the way between two ranks.
struct LinkSpeed {
  std::uint32_t kbit_s = 0;  ///< of payload
  std::uint32_t us = 0;      ///< from the one rank to the other: half of a round trip

  bool operator==(const LinkSpeed&) const = default;
};

/// The speed of the way from each rank to each other one. Integers: all ranks of a group have the
/// same bytes, and compute the same from them whatever their processors.
class LinkMatrix {
 public:
  /// As slow a way as a matrix knows of: what is slower counts as this.
  static constexpr std::uint32_t kLeastKbit = 1;

  /// A matrix of equal links. Throws Error(usage) for fewer than one rank and for a rate of 0.
  LinkMatrix(int ranks, LinkSpeed all);

  int ranks() const { return ranks_; }
  /// Returns the speed of the way from one rank to another one. Throws Error(usage) for ranks that
  /// do not exist or are the same.
  const LinkSpeed& at(int from, int to) const;
  void set(int from, int to, LinkSpeed speed);
  /// Returns the nanoseconds that a message of `bytes` takes from one rank to another, rounded up.
  std::int64_t message_ns(int from, int to, std::uint64_t bytes) const;
  /// Returns the matrix of the ranks `members`, in their order.
  LinkMatrix of(std::span<const int> members) const;
  /// Returns the rate of the slowest of all links, in kbit/s; that of one rank is the greatest that
  /// there is.
  std::uint32_t slowest_kbit() const;
  /// Returns a line for each rank: what it sends to each, in Mbit/s.
  std::string text() const;

  bool operator==(const LinkMatrix&) const = default;

 private:
  std::size_t index(int from, int to) const;

  int ranks_;
  std::vector<LinkSpeed> links_;  ///< [from][to]
};

}  // namespace shoal::collective
