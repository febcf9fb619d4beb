#include "shoal/collective/codec/coded_exchange.h"

namespace shoal::collective {
namespace {

/// Returns the coding of what `rank` contributes, or with -1 of the sums. Equal noise on all ranks
/// would not average out.
Coding with_noise_of(const Coding& coding, int rank) {
  Coding own = coding;
  own.key = rank < 0 ? coding.key.child("sum")
                     : coding.key.child("contribution").child(static_cast<std::uint64_t>(rank));
  return own;
}

}  // namespace

CodedExchange::CodedExchange(const Operation& operation, int rank, int ranks)
    : coding_(operation.coding),
      buffer_(operation.buffer),
      rank_(rank),
      ranks_(ranks),
      encoded_(encoded_bytes(coding_, buffer_.count)),
      slot_bytes_(part_bytes(rank).size()),
      memory_(new std::byte[2 * encoded_ + static_cast<std::size_t>(ranks) * slot_bytes_]) {
  Feedback feedback;
  if (operation.feedback != nullptr) {
    feedback = operation.feedback->contribution;
    sum_feedback_ = operation.feedback->sum;
  }
  encode(with_noise_of(coding_, rank), 0, {static_cast<const float*>(buffer_.input), buffer_.count},
         feedback, {memory_.get(), encoded_});
}

// Parts are whole blocks, so the bytes of the values before a part are those of its beginning.
Range CodedExchange::part_bytes(int rank) const {
  const Range part = coded_part(coding_, buffer_.count, ranks_, rank);
  return {encoded_bytes(coding_, part.begin), encoded_bytes(coding_, part.end)};
}

Range CodedExchange::slot(int rank) const {
  const std::size_t begin = encoded_ + static_cast<std::size_t>(rank) * slot_bytes_;
  return {begin, begin + slot_bytes_};
}

Range CodedExchange::sum(int rank) const {
  return shifted(part_bytes(rank), encoded_ + static_cast<std::size_t>(ranks_) * slot_bytes_);
}

// Each rank starts with its successor, so that no rank is the first target of all. All sends of a
// round stand before its receives: no two ranks can wait for each other.
std::vector<Step> CodedExchange::steps() const {
  std::vector<Step> steps;
  const auto others = [&](auto&& visit) {
    for (int distance = 1; distance < ranks_; ++distance) visit((rank_ + distance) % ranks_);
  };
  others([&](int peer) { steps.push_back({Action::kSend, peer, contribution(peer)}); });
  others([&](int peer) { steps.push_back({Action::kReceiveCopy, peer, slot(peer)}); });
  steps.push_back({Action::kFold, rank_, sum(rank_)});
  others([&](int peer) { steps.push_back({Action::kSend, peer, sum(rank_)}); });
  others([&](int peer) { steps.push_back({Action::kReceiveCopy, peer, sum(peer)}); });
  return steps;
}

void CodedExchange::add_up() {
  const Range part = coded_part(coding_, buffer_.count, ranks_, rank_);
  if (part.size() == 0) return;
  // The sum lies where the result will: nobody reads the input any more, also in place.
  const std::span<float> values(static_cast<float*>(buffer_.output) + part.begin, part.size());
  for (int r = 0; r < ranks_; ++r) {
    decode(coding_, bytes(r == rank_ ? contribution(r) : slot(r)), values,
           r == 0 ? Decode::kStore : Decode::kAdd);
  }
  encode(with_noise_of(coding_, -1), part.begin, values, sum_feedback_, bytes(sum(rank_)));
}

void CodedExchange::finish() {
  const Range all{sum(0).begin, sum(ranks_ - 1).end};
  decode(coding_, bytes(all), {static_cast<float*>(buffer_.output), buffer_.count}, Decode::kStore);
}

}  // namespace shoal::collective
