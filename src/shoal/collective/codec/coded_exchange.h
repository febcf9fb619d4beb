#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shoal/collective/codec/error_feedback.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// One rank's side of a coded all-reduce, without the transport. Each rank owns a part of the
/// values (coded_part). Its parts of the contributions come to the owner encoded, who decodes and
/// adds them in the order of ranks in fp32, and encodes the sum once for all. Everybody decodes
/// those bytes, the owner too, so all ranks end with the same bits. Every value is encoded twice,
/// whatever the number of ranks.
///
/// The bytes lie in one block of memory, which the transport reads and fills:
///   [0, E)         this rank's contribution, the parts in the order of ranks
///   p slots of s   what each rank contributes to this rank's part, of s bytes; the slot of the
///                  rank itself is not read
///   E more         the sums, the parts in the order of ranks
class CodedExchange {
 public:
  /// Encodes the input of `operation`, an all-reduce with a codec. Contributions differ in their
  /// random numbers by rank.
  CodedExchange(const Operation& operation, int rank, int ranks);

  const Coding& coding() const { return coding_; }
  std::size_t count() const { return buffer_.count; }

  /// Ranges of bytes.
  Range contribution(int rank) const { return shifted(part_bytes(rank), 0); }
  Range slot(int rank) const;
  Range sum(int rank) const;
  std::size_t encoded() const { return encoded_; }  ///< bytes of all values
  std::byte* at(std::size_t byte) const { return memory_.get() + byte; }

  /// Returns the steps of this rank over these bytes, by the direct algorithm: a kFold stands for
  /// `add_up`.
  std::vector<Step> steps() const;

  /// Adds up the contributions to this rank's part and encodes the sum into its place. Throws
  /// Error(data) for bytes of a peer that no `encode` has written.
  void add_up();
  /// Decodes all sums into the output. Throws as `add_up`.
  void finish();

 private:
  Range part_bytes(int rank) const;
  static Range shifted(Range range, std::size_t by) { return {range.begin + by, range.end + by}; }
  std::span<std::byte> bytes(Range range) const {
    return {memory_.get() + range.begin, range.size()};
  }

  Coding coding_;
  Buffer buffer_;
  Feedback sum_feedback_;
  int rank_;
  int ranks_;
  std::size_t encoded_;
  std::size_t slot_bytes_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace shoal::collective
