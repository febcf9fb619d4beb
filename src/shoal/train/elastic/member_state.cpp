#include "shoal/train/elastic/member_state.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/train/elastic/run_state.h"

namespace shoal::train {
namespace {

using Bytes = MemberRanks::Bytes;
using Span = std::span<const std::byte>;

/// Returns the first rank with the same state, by rank.
std::vector<std::size_t> first_of_equals(const std::vector<Digest>& digests) {
  std::vector<std::size_t> firsts;
  for (const Digest& digest : digests) {
    const auto first = std::find(digests.begin(), digests.end(), digest);
    firsts.push_back(static_cast<std::size_t>(first - digests.begin()));
  }
  return firsts;
}

std::uint64_t take_number(Span& bytes) {
  std::uint64_t number = 0;
  if (bytes.size() < sizeof number)
    throw Error(ErrorKind::kData, "elastic", "the group has sent what is no state of a member");
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes = bytes.subspan(sizeof number);
  return number;
}

}  // namespace

// Ranks; for each the first rank with the same state; for each the size, 0 where it is not the
// first; the states.
MemberRanks::Bytes gather_state(const MemberRanks& ranks, Bytes own) {
  const std::vector<Digest> digests = ranks.digests(RunState::digest_of(own));
  const std::vector<std::size_t> firsts = first_of_equals(digests);
  std::vector<bool> leave_out;
  for (std::size_t rank = 0; rank < firsts.size(); ++rank)
    leave_out.push_back(firsts[rank] != rank);
  std::vector<Bytes> states = ranks.to_leader(std::move(own), leave_out);
  if (!ranks.leads()) return {};
  Bytes all;
  std::size_t size = (1 + 2 * states.size()) * sizeof(std::uint64_t);
  for (const Bytes& state : states) size += state.size();
  all.reserve(size);
  const auto put = [&](std::uint64_t number) {
    const auto bytes = std::as_bytes(std::span(&number, 1));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  put(states.size());
  for (const std::size_t first : firsts) put(first);
  for (const Bytes& state : states) put(state.size());
  for (Bytes& state : states) {
    all.insert(all.end(), state.begin(), state.end());
    Bytes().swap(state);
  }
  return all;
}

std::vector<Span> parts_of_state(Span bytes) {
  const Error none(ErrorKind::kData, "elastic", "the group has sent what is no state of a member");
  const std::uint64_t count = take_number(bytes);
  if (count > bytes.size()) throw none;
  std::vector<std::uint64_t> firsts;
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < count; ++i) firsts.push_back(take_number(bytes));
  for (std::uint64_t i = 0; i < count; ++i) sizes.push_back(take_number(bytes));
  std::vector<Span> parts;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (firsts[i] > i || sizes[i] > bytes.size()) throw none;
    parts.push_back(firsts[i] == i ? bytes.first(sizes[i]) : parts[firsts[i]]);
    if (firsts[i] == i) bytes = bytes.subspan(sizes[i]);
  }
  if (!bytes.empty()) throw none;
  return parts;
}

Digest digest_of_member_state(Span bytes) {
  try {
    std::vector<Digest> digests;
    std::vector<Span> parts = parts_of_state(bytes);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      // A state that several ranks have is digested once.
      const auto first = std::find_if(parts.begin(), parts.end(), [&](const Span& part) {
        return part.data() == parts[i].data();
      });
      const auto rank = static_cast<std::size_t>(first - parts.begin());
      digests.push_back(rank < i ? digests[rank] : RunState::digest_of(parts[i]));
    }
    return digests.empty() ? Digest{} : MemberRanks::combined(digests);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace shoal::train
