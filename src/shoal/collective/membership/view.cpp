#include "shoal/collective/membership/view.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <set>
#include <span>

#include "shoal/base/check.h"
#include "shoal/collective/membership/fields.h"

namespace shoal::collective::membership {
namespace {

bool lists(std::span<const Member> members, const MemberId& id) {
  return std::any_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.id == id; });
}

[[noreturn]] void refuse(const View& view, const std::string& what) {
  throw Error(ErrorKind::kData, "membership",
              fmt::format("a view of epoch {} cannot be: {}", view.epoch, what));
}

}  // namespace

bool contains(const std::vector<MemberId>& ids, const MemberId& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::string text(const std::vector<MemberId>& ids) {
  std::string joined;
  for (const MemberId& id : ids) joined += (joined.empty() ? "" : ", ") + id.text();
  return "[" + joined + "]";
}

bool View::has_member(const MemberId& id) const { return lists(members, id); }

bool View::is_fresh(const MemberId& id) const {
  return lists(std::span(members).last(std::min<std::size_t>(fresh, members.size())), id);
}

bool View::has_witness(const MemberId& id) const { return lists(witnesses, id); }

bool View::is_kept_by(const MemberId& id) const { return contains(keepers, id); }

std::vector<Member> View::established() const {
  if (fresh >= members.size()) return members;
  return {members.begin(), members.end() - fresh};
}

std::vector<MemberId> View::everybody() const {
  std::vector<MemberId> ids;
  ids.reserve(members.size() + witnesses.size());
  for (const Member& member : members) ids.push_back(member.id);
  for (const Member& witness : witnesses) ids.push_back(witness.id);
  return ids;
}

wire::Bytes canonical_bytes(const View& view) {
  FieldWriter writer;
  write_fields(writer, view);
  return writer.take();
}

Digest digest(std::span<const std::byte> bytes) {
  Digest digest;
  unsigned size = 0;
  const bool made =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                 EVP_sha256(), nullptr) == 1;
  SHOAL_CHECK(made && size == digest.size(), "SHA-256 is not available");
  return digest;
}

Digest digest(const View& view) { return digest(canonical_bytes(view)); }

std::vector<MemberId> choose_keepers(const std::vector<Member>& members,
                                     const std::vector<Member>& witnesses) {
  std::vector<MemberId> keepers;
  for (const Member& member : members) keepers.push_back(member.id);
  for (const Member& witness : witnesses) keepers.push_back(witness.id);
  keepers.resize(std::min(keepers.size(), View::kMostKeepers));
  if (!keepers.empty() && keepers.size() % 2 == 0) keepers.pop_back();
  return keepers;
}

std::vector<Member> add_removed(std::vector<Member> before, const std::vector<Member>& more) {
  before.insert(before.end(), more.begin(), more.end());
  if (before.size() > View::kMostRemoved)
    before.erase(before.begin(), before.end() - View::kMostRemoved);
  return before;
}

void check(const View& view) {
  if (view.epoch == 0) refuse(view, "epochs begin at 1");
  if (view.members.empty()) refuse(view, "it has no members");
  const std::vector<MemberId> everybody = view.everybody();
  if (everybody.size() > View::kMostMembers) {
    refuse(view, fmt::format("it has {} members and witnesses, at most {} are allowed",
                             everybody.size(), View::kMostMembers));
  }
  if (view.kept_by.size() > View::kLongestName) {
    refuse(view, fmt::format("the name of its keeper has {} bytes, at most {} are allowed",
                             view.kept_by.size(), View::kLongestName));
  }
  const Admission& admission = view.admission;
  const std::size_t most_used = admission.by_token ? Admission::kMostUsed : 0;
  if (admission.used.size() > most_used) {
    refuse(view, fmt::format("it names {} used join tokens, at most {} are allowed",
                             admission.used.size(), most_used));
  }
  const std::set<MemberId> ids(everybody.begin(), everybody.end());
  if (view.fresh > view.members.size())
    refuse(view, fmt::format("{} of {} members are fresh", view.fresh, view.members.size()));
  if (ids.size() != everybody.size()) refuse(view, "a member stands in it twice");
  if (view.removed.size() > View::kMostRemoved) {
    refuse(view, fmt::format("it names {} removed members, at most {} are allowed",
                             view.removed.size(), View::kMostRemoved));
  }
  for (const auto* list : {&view.members, &view.witnesses}) {
    for (const Member& member : *list) {
      if (member.endpoints.size() > Member::kMostEndpoints) {
        refuse(view, fmt::format("{} has {} endpoints, at most {} are allowed", member.id.text(),
                                 member.endpoints.size(), Member::kMostEndpoints));
      }
    }
  }
  for (const Member& member : view.members) {
    if (member.width == 0 || member.width != view.members[0].width) {
      refuse(view, fmt::format("member {} has {} ranks, member {} has {}", member.id.text(),
                               member.width, view.members[0].id.text(), view.members[0].width));
    }
  }
  if (view.keepers.size() % 2 == 0 || view.keepers.size() > View::kMostKeepers) {
    refuse(view, fmt::format("it has {} keepers, an odd number up to {} is expected",
                             view.keepers.size(), View::kMostKeepers));
  }
  if (std::set<MemberId>(view.keepers.begin(), view.keepers.end()).size() != view.keepers.size())
    refuse(view, "a keeper stands in it twice");
  for (const MemberId& keeper : view.keepers) {
    if (!ids.contains(keeper))
      refuse(view, fmt::format("keeper {} is neither a member nor a witness of it", keeper.text()));
  }
}

}  // namespace shoal::collective::membership
