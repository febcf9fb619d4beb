#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

inline MemberId id_of(std::uint64_t number) {
  MemberId id;
  for (std::size_t i = 0; i < 8; ++i) id.bytes[i] = static_cast<std::byte>(number >> (8 * i));
  return id;
}

inline Member member_of(std::uint64_t number) {
  return Member{.id = id_of(number), .endpoints = {}, .site = {}};
}

inline std::vector<Member> members_of(std::uint64_t first, std::uint64_t count) {
  std::vector<Member> members;
  for (std::uint64_t i = 0; i < count; ++i) members.push_back(member_of(first + i));
  return members;
}

/// Members 1, 2, ... and behind them the witnesses.
inline View first_view(std::uint64_t members, std::uint64_t witnesses = 0) {
  View view;
  view.lineage = 1;
  view.members = members_of(1, members);
  view.witnesses = members_of(1 + members, witnesses);
  view.keepers = choose_keepers(view.members, view.witnesses);
  return view;
}

}  // namespace shoal::collective::membership
