#include "shoal/train/elastic/member_ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "shoal/collective/membership/view.h"
#include "shoal/train/step.h"
#include "shoal/wire/error_bytes.h"

namespace shoal::train {
namespace {

constexpr std::uint32_t kOutcomeTag = 1;   ///< of a rank's part
constexpr std::uint32_t kDecisionTag = 2;  ///< of all parts
constexpr std::uint32_t kStateTag = 3;
/// An outcome: its size, and the error, if there is one.
constexpr std::int64_t kMessageBytes = 1024;
/// A rank that waits for the others looks so often.
constexpr auto kPause = std::chrono::microseconds(50);

const comm::Options kBeside{.async = true, .timeout = kInAStep};

at::Tensor empty_bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

/// `bytes` must outlive it.
at::Tensor tensor_of(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

at::Tensor message_of(const std::optional<Error>& error) {
  const at::Tensor message = empty_bytes(kMessageBytes);
  message.zero_();
  if (!error) return message;
  const wire::Bytes bytes = wire::encode(*error, kMessageBytes - sizeof(std::uint64_t));
  const std::uint64_t size = bytes.size();
  auto* const to = static_cast<std::byte*>(message.data_ptr());
  std::memcpy(to, &size, sizeof size);
  std::memcpy(to + sizeof size, bytes.data(), bytes.size());
  return message;
}

std::optional<Error> error_in(const at::Tensor& message) {
  std::uint64_t size = 0;
  const auto* const from = static_cast<const std::byte*>(message.const_data_ptr());
  std::memcpy(&size, from, sizeof size);
  if (size == 0) return std::nullopt;
  return wire::decode_error({from + sizeof size, size});
}

/// A failure of another rank's connections ends the view for this one as that of a peer would.
Error of_rank(int rank, int size, const Error& error) {
  const bool passes = error.kind() == ErrorKind::kTimeout || error.kind() == ErrorKind::kAborted ||
                      error.kind() == ErrorKind::kPeerLost;
  if (!passes) return Error(error).at(rank, size);
  return Error(ErrorKind::kPeerLost, error.operation(),
               fmt::format("rank {} of this member has failed with other members: {}", rank,
                           error.message()));
}

}  // namespace

MemberRanks::MemberRanks(const comm::Group& member, const Limits& limits) : limits_(limits) {
  if (member.size() > 1) group_ = member.split(0, member.rank(), "member's leader");
}

comm::Options MemberRanks::waiting() const {
  return {.timeout = leads() ? limits_.answer : kInAStep};
}

MemberRanks::Bytes MemberRanks::from_leader(Bytes bytes) const {
  if (is_alone()) return bytes;
  const at::Tensor size = at::empty({1}, at::kLong);
  *size.data_ptr<std::int64_t>() = static_cast<std::int64_t>(bytes.size());
  group_.broadcast(size, 0, waiting());
  bytes.resize(static_cast<std::size_t>(*size.const_data_ptr<std::int64_t>()));
  if (!bytes.empty()) group_.broadcast(tensor_of(bytes), 0, waiting());
  return bytes;
}

std::vector<MemberRanks::Bytes> MemberRanks::to_leader(Bytes own,
                                                       const std::vector<bool>& leave_out) const {
  const at::Tensor size = at::empty({1}, at::kLong);
  *size.data_ptr<std::int64_t>() = static_cast<std::int64_t>(own.size());
  const at::Tensor sizes = at::empty({this->size()}, at::kLong);
  group_.all_gather(sizes, size, waiting());
  const auto sends = [&](int rank) {
    return !leave_out[static_cast<std::size_t>(rank)] &&
           sizes.const_data_ptr<std::int64_t>()[rank] > 0;
  };
  if (!leads()) {
    if (sends(rank())) group_.send(tensor_of(own), 0, kStateTag, waiting());
    return {};
  }
  std::vector<Bytes> all(static_cast<std::size_t>(this->size()));
  all[0] = std::move(own);
  for (int r = 1; r < this->size(); ++r) {
    if (!sends(r)) continue;
    Bytes& bytes = all[static_cast<std::size_t>(r)];
    bytes.resize(static_cast<std::size_t>(sizes.const_data_ptr<std::int64_t>()[r]));
    group_.recv(tensor_of(bytes), r, kStateTag, waiting());
  }
  return all;
}

MemberRanks::Bytes MemberRanks::part_from_leader(
    const std::vector<std::span<const std::byte>>& parts) const {
  const at::Tensor sizes = at::empty({size()}, at::kLong);
  auto* const counts = sizes.data_ptr<std::int64_t>();
  for (std::size_t i = 0; leads() && i < parts.size(); ++i)
    counts[i] = static_cast<std::int64_t>(parts[i].size());
  if (!is_alone()) group_.broadcast(sizes, 0, waiting());
  Bytes own(static_cast<std::size_t>(counts[rank()]));
  if (!leads()) {
    if (!own.empty()) group_.recv(tensor_of(own), 0, kStateTag, waiting());
    return own;
  }
  for (int r = 1; r < size(); ++r) {
    const auto part = parts[static_cast<std::size_t>(r)];
    if (!part.empty()) group_.send(tensor_of(part), r, kStateTag, waiting());
  }
  own.assign(parts[0].begin(), parts[0].end());
  return own;
}

std::vector<MemberRanks::Digest> MemberRanks::digests(const Digest& own) const {
  std::vector<Digest> all(static_cast<std::size_t>(size()));
  if (is_alone()) {
    all[0] = own;
    return all;
  }
  group_.all_gather(tensor_of(std::as_bytes(std::span(all))), tensor_of(own), waiting());
  return all;
}

MemberRanks::Digest MemberRanks::combined(const Digest& own) const {
  return combined(digests(own));
}

MemberRanks::Digest MemberRanks::combined(const std::vector<Digest>& of_ranks) {
  if (of_ranks.size() == 1) return of_ranks[0];
  return collective::membership::digest(std::as_bytes(std::span(of_ranks)));
}

void MemberRanks::together(const Part& part) const {
  try {
    if (leads()) {
      lead(part);
    } else {
      follow(part);
    }
  } catch (const FailedTogether&) {
    throw;
  } catch (const Error& error) {
    // The ranks of this member have ended. What this one has begun must not go on behind the
    // caller.
    part.give_up(error);
    throw;
  }
}

Error MemberRanks::silent(int known) const {
  return Error(ErrorKind::kPeerLost, "elastic",
               fmt::format("{} of the {} ranks of this member say what became of their part in the "
                           "attempt, and the others nothing",
                           known, size()))
      .at(rank(), size())
      .hint("Is a rank stopped? Look at the logs of all of them.");
}

// Every rank sends one outcome and gets one decision, whatever happens, so that none is taken for
// that of the next call.
void MemberRanks::lead(const Part& part) const {
  struct Outcome {
    at::Tensor message;
    comm::Work work;
    bool is_known = false;
  };
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size()));
  for (int r = 1; r < size(); ++r) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    outcome.message = empty_bytes(kMessageBytes);
    outcome.work = group_.recv(outcome.message, r, kOutcomeTag, kBeside);
  }
  const auto decide = [&](const std::optional<Error>& error) {
    const at::Tensor message = message_of(error);
    for (int r = 1; r < size(); ++r) group_.send(message, r, kDecisionTag, kBeside);
  };
  std::optional<Error> failure;
  bool is_complete = false;
  bool is_decided = false;
  Deadline until = Deadline::never();
  for (int known = 1;;) {
    if (!failure) {
      const bool was_complete = is_complete;
      try {
        is_complete = part.goes_on();
      } catch (const Error& error) {
        failure = error;
      }
      if (is_complete && !was_complete) until = Deadline::in(limits_.part);
    }
    for (int r = 1; r < size(); ++r) {
      Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
      if (outcome.is_known || !outcome.work.test()) continue;
      outcome.is_known = true;
      ++known;
      const std::optional<Error> error = error_in(outcome.message);
      if (error && !failure) failure = of_rank(r, size(), *error);
    }
    if (failure && !std::exchange(is_decided, true)) {
      decide(failure);
      part.give_up(*failure);
      until = Deadline::in(limits_.answer);
    }
    if (known == size() && (is_complete || failure)) break;
    if (until.passed()) throw silent(known);
    if (is_complete || failure) std::this_thread::sleep_for(kPause);
  }
  if (failure) throw FailedTogether(*failure);
  decide(std::nullopt);
}

void MemberRanks::follow(const Part& part) const {
  const at::Tensor decision = empty_bytes(kMessageBytes);
  comm::Work decided = group_.recv(decision, 0, kDecisionTag, kBeside);
  bool is_told = false;
  const auto tell = [&](const std::optional<Error>& error) {
    group_.send(message_of(error), 0, kOutcomeTag, kBeside);
    is_told = true;
  };
  while (!is_told && !decided.test()) {
    try {
      if (part.goes_on()) tell(std::nullopt);
    } catch (const Error& error) {
      check();
      tell(error);
    }
  }
  decided.wait(Deadline::in(kInAStep));
  const std::optional<Error> failure = error_in(decision);
  if (!failure) return;
  part.give_up(*failure);
  if (!is_told) tell(failure);
  throw FailedTogether(*failure);
}

}  // namespace shoal::train
