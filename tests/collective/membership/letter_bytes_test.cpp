// Letters and views as bytes: what exactly is written, that everything comes back, and that broken
// bytes are refused by name or are another valid letter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/collective/membership/chain.h"
#include "shoal/collective/membership/fields.h"
#include "shoal/collective/membership/letter.h"
#include "tests/collective/membership/some_members.h"
#include "tests/error_text.h"

namespace shoal::collective::letter_bytes_test {
namespace {

using namespace membership;
using testing::HasSubstr;

/// Values of every kind of letter.
class Anything {
 public:
  explicit Anything(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number() { return random_() >> (random_() % 64); }
  bool flag() { return random_() % 2 == 0; }
  MemberId id() { return id_of(random_()); }
  Digest digest() {
    Digest digest;
    for (std::byte& byte : digest) byte = static_cast<std::byte>(random_());
    return digest;
  }
  std::string words() {
    return std::string(random_() % 40, static_cast<char>('a' + random_() % 26));
  }
  std::vector<MemberId> ids() {
    std::vector<MemberId> ids(random_() % 4);
    for (MemberId& one : ids) one = id();
    return ids;
  }
  Ballot ballot() { return {.round = number() >> 16, .proposer = id()}; }
  Place place() {
    return {.lineage = number(),
            .epoch = number(),
            .step = number(),
            .state = digest(),
            .samples = number()};
  }
  Member member(std::uint32_t width) {
    Member member{.id = id(), .endpoints = {}, .width = width, .site = words()};
    member.protocol = static_cast<std::uint32_t>(number());
    if (flag()) member.mesh = words();
    for (std::uint64_t i = random_() % 3; i > 0; --i)
      member.endpoints.push_back({words(), static_cast<std::uint16_t>(random_())});
    return member;
  }
  View view() {
    View view{.epoch = 1 + number() / 2,
              .lineage = number(),
              .parent = digest(),
              .first_step = number(),
              .state = digest(),
              .samples = number(),
              .members = {},
              .fresh = 0,
              .witnesses = {},
              .removed = {},
              .keepers = {}};
    const auto width = static_cast<std::uint32_t>(1 + random_() % 9);
    for (std::uint64_t i = 1 + random_() % 6; i > 0; --i) view.members.push_back(member(width));
    for (std::uint64_t i = random_() % 2; i > 0; --i) view.witnesses.push_back(member(1));
    for (std::uint64_t i = random_() % 3; i > 0; --i) view.removed.push_back(member(1));
    view.fresh = static_cast<std::uint32_t>(random_() % (view.members.size() + 1));
    view.keepers = choose_keepers(view.members, view.witnesses);
    if (flag()) view.admission = admission();
    if (flag()) view.kept_by = words();
    return view;
  }
  Admission admission() {
    Admission admission{.by_token = true, .cluster = words(), .clock_s = number(), .used = {}};
    admission.key = digest();
    for (std::uint64_t i = random_() % 3; i > 0; --i)
      admission.used.push_back({.nonce = id().bytes, .expires_s = number()});
    return admission;
  }
  Outcome outcome() {
    return {.step = number(),
            .kind = flag() ? Outcome::Kind::kCommit : Outcome::Kind::kAbort,
            .state = digest(),
            .samples = number(),
            .cause = words(),
            .odd = ids()};
  }
  Body body(std::size_t kind) {
    switch (kind) {
      case 0:
        return Beat{place(), ids(), flag()};
      case 1:
        return Report{number(), flag(), digest(), number(), words()};
      case 2:
        return AcceptStep{ballot(), outcome()};
      case 3:
        return AcceptedStep{ballot(), number()};
      case 4:
        return Decided{outcome(), flag()};
      case 5:
        return Prepare{ballot()};
      case 6: {
        Promise promise{ballot(), std::nullopt, std::nullopt};
        if (flag()) promise.view = ViewVote{ballot(), view()};
        if (flag()) promise.step = outcome();
        return promise;
      }
      case 7:
        return AcceptView{{ballot(), view()}};
      case 8:
        return AcceptedView{ballot()};
      case 9:
        return Refusal{ballot(), ballot()};
      case 10:
        return Hold{view()};
      case 11:
        return Held{digest()};
      case 12:
        return Start{view()};
      case 13:
        return Join{member(3), flag(), flag(), words(), words()};
      case 14:
        return JoinRefused{words(), words()};
      case 15:
        return ForkAsk{ballot(), ids()};
      case 16:
        return ForkPromise{ballot(), place()};
      case 17:
        return Met{id(), place()};
      case 18:
        return Yield{place()};
      case 19:
        return Readiness{number(), flag()};
      default:
        return MayBegin{number()};
    }
  }
  Letter letter(std::size_t kind) {
    Letter letter{.from = id(),
                  .to = id(),
                  .lineage = number(),
                  .epoch = number(),
                  .relayed = flag(),
                  .body = body(kind)};
    letter.hop = letter.to;
    return letter;
  }

 private:
  std::mt19937_64 random_;
};

constexpr std::size_t kKinds = std::variant_size_v<Body>;

void expect_equal(const Letter& a, const Letter& b) {
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.to, b.to);
  EXPECT_EQ(a.lineage, b.lineage);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.relayed, b.relayed);
  EXPECT_TRUE(a.body == b.body);
}

/// Bytes put together by hand.
class Bytes {
 public:
  Bytes& number(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
    return *this;
  }
  Bytes& fill(std::size_t count, int value) {
    bytes.insert(bytes.end(), count, static_cast<std::byte>(value));
    return *this;
  }
  Bytes& text(const std::string& text) {
    number(text.size(), 4);
    for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
    return *this;
  }
  wire::Bytes bytes;
};

wire::Bytes bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// The fuzzer would be refused at the first byte of seeds of another format. They are written anew
// by
//   SHOAL_WRITE_SEEDS=1 build/release/bin/membership_test --gtest_filter='LetterBytes.Seeds*'
TEST(LetterBytes, SeedsOfTheFuzzerAreLettersOfEachKind) {
  const std::filesystem::path folder = SHOAL_LETTER_SEEDS;
  if (std::getenv("SHOAL_WRITE_SEEDS")) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const wire::Bytes bytes = encode(Anything(kind).letter(kind));
      std::ofstream file(folder / ("kind_" + std::to_string(kind)), std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
  }
  std::set<std::size_t> kinds;
  for (const auto& seed : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(seed.path());
    ASSERT_NO_THROW(kinds.insert(decode_letter(bytes_of_file(seed.path())).body.index()));
  }
  EXPECT_EQ(kinds.size(), kKinds);
}

TEST(LetterBytes, AViewHasTheseBytesAndTheirSha256) {
  View view;
  view.epoch = 0x0102030405060708;
  view.lineage = 9;
  view.parent.fill(std::byte{0xaa});
  view.first_step = 300;
  view.state.fill(std::byte{0xbb});
  view.samples = 70000;
  view.members = {{.id = {},
                   .endpoints = {{"h", 0x1234}},
                   .width = 2,
                   .protocol = 3,
                   .site = "ab",
                   .mesh = "c"}};
  view.members[0].id.bytes.fill(std::byte{0xcc});
  view.fresh = 1;
  view.removed.emplace_back();
  view.removed[0].id.bytes.fill(std::byte{0xdd});
  view.keepers = {view.members[0].id};
  view.admission = {.by_token = true, .cluster = "north", .clock_s = 77, .used = {}};
  view.admission.key.fill(std::byte{0xee});
  view.admission.used = {{.nonce = {}, .expires_s = 88}};
  view.admission.used[0].nonce.fill(std::byte{0xff});
  view.kept_by = "an etcd";
  Bytes by_hand;
  by_hand.number(0x0102030405060708, 8).number(9, 8).fill(32, 0xaa).number(300, 8).fill(32, 0xbb);
  by_hand.number(70000, 8);
  by_hand.number(1, 4).fill(16, 0xcc).number(1, 4).text("h").number(0x1234, 2);
  by_hand.number(2, 4).number(3, 4).text("ab").text("c");
  by_hand.number(1, 4)
      .number(0, 4)
      .number(1, 4)
      .fill(16, 0xdd)
      .number(0, 4)
      .number(1, 4)
      .number(1, 4)
      .number(0, 4)
      .number(0, 4);
  by_hand.number(1, 4).fill(16, 0xcc);
  by_hand.number(1, 1).text("north").fill(32, 0xee).number(77, 8);
  by_hand.number(1, 4).fill(16, 0xff).number(88, 8);
  by_hand.text("an etcd");
  EXPECT_EQ(canonical_bytes(view), by_hand.bytes);
  EXPECT_EQ(decode_view(by_hand.bytes), view);
  Digest expected;
  SHA256(reinterpret_cast<const unsigned char*>(by_hand.bytes.data()), by_hand.bytes.size(),
         reinterpret_cast<unsigned char*>(expected.data()));
  EXPECT_EQ(digest(view), expected);
}

TEST(LetterBytes, AnAcceptedStepHasTheseBytes) {
  Letter letter{.from = {},
                .to = {},
                .lineage = 5,
                .epoch = 6,
                .relayed = true,
                .body = AcceptedStep{.ballot = {7, {}}, .step = 8}};
  letter.from.bytes.fill(std::byte{1});
  letter.to.bytes.fill(std::byte{2});
  std::get<AcceptedStep>(letter.body).ballot.proposer.bytes.fill(std::byte{3});
  Bytes by_hand;
  by_hand.number(4, 1).number(3, 1).fill(16, 1).fill(16, 2).number(5, 8).number(6, 8).number(1, 1);
  by_hand.number(7, 8).fill(16, 3).number(8, 8);
  EXPECT_EQ(encode(letter), by_hand.bytes);
}

TEST(LetterBytes, EveryKindComesBack) {
  Anything anything(1);
  for (int round = 0; round < 50; ++round) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const Letter letter = anything.letter(kind);
      ASSERT_EQ(letter.body.index(), kind);
      expect_equal(decode_letter(encode(letter)), letter);
    }
  }
}

TEST(LetterBytes, AnEntryOfTheChainHasTheseBytes) {
  Outcome outcome{.step = 8,
                  .kind = Outcome::Kind::kAbort,
                  .state = {},
                  .samples = 9,
                  .cause = "why",
                  .odd = {{}}};
  outcome.odd[0].bytes.fill(std::byte{4});
  Bytes by_hand;
  by_hand.number(4, 1).number(0, 1).number(8, 8).number(1, 1).fill(32, 0).number(9, 8);
  by_hand.text("why").number(1, 4).fill(16, 4);
  EXPECT_EQ(encode(ChainEntry{outcome}), by_hand.bytes);
  EXPECT_EQ(std::get<Outcome>(decode_chain_entry(by_hand.bytes)), outcome);
}

// Entries come from another program's disk.
TEST(LetterBytes, EveryTruncationAndFlippedBitOfAnEntryIsAnotherEntryOrRefused) {
  Anything anything(4);
  for (const ChainEntry& entry : {ChainEntry{anything.outcome()}, ChainEntry{anything.view()}}) {
    const wire::Bytes bytes = encode(entry);
    ASSERT_EQ(decode_chain_entry(bytes), entry);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      ASSERT_THROW(decode_chain_entry(std::span(bytes).first(size)), Error) << size;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      wire::Bytes flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      try {
        ASSERT_EQ(encode(decode_chain_entry(flipped)), flipped) << bit;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kData) << error.what();
      }
    }
  }
}

TEST(LetterBytes, EveryTruncationIsRefusedAndEveryFlippedBitIsAnotherLetterOrRefused) {
  Anything anything(2);
  std::size_t refused = 0;
  std::size_t valid = 0;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const wire::Bytes bytes = encode(anything.letter(kind));
    for (std::size_t size = 0; size < bytes.size(); ++size)
      ASSERT_THROW(decode_letter(std::span(bytes).first(size)), Error) << kind << ": " << size;
    wire::Bytes longer = bytes;
    longer.push_back(std::byte{0});
    ASSERT_THROW(decode_letter(longer), Error) << kind;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      wire::Bytes flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      try {
        // What can be read is a letter: it has one encoding, and this is it.
        ASSERT_EQ(encode(decode_letter(flipped)), flipped) << kind << ": bit " << bit;
        ++valid;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kData) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100u);
  EXPECT_GT(valid, 100u);
}

TEST(LetterBytes, RandomBytesAreRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    wire::Bytes bytes(random() % 300);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 4);
    if (bytes.size() > 1) bytes[0] = std::byte{3};
    try {
      ASSERT_EQ(encode(decode_letter(bytes)), bytes);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData) << error.what();
    }
  }
}

TEST(LetterBytes, ErrorsNameTheFieldAndThePlace) {
  Letter letter{.from = id_of(1), .to = id_of(2), .body = JoinRefused{"no", ""}};
  wire::Bytes bytes = encode(letter);
  EXPECT_THAT(
      error_text([&] { decode_letter(std::span(bytes).first(56)); }),
      HasSubstr("a letter of 56 bytes cannot be read: why at byte 55: 2 bytes are needed, 1 "
                "are left"));
  bytes[50] = std::byte{2};
  EXPECT_THAT(error_text([&] { decode_letter(bytes); }),
              HasSubstr("relayed at byte 51: 2 is neither 0 nor 1"));
  bytes[50] = std::byte{0};
  bytes[1] = std::byte{200};
  EXPECT_THAT(error_text([&] { decode_letter(bytes); }), HasSubstr("200 names no letter"));
  bytes[0] = std::byte{9};
  EXPECT_THAT(error_text([&] { decode_letter(bytes); }), HasSubstr("format at byte 1: it is 9"));
}

TEST(LetterBytes, AViewThatContradictsItselfIsRefused) {
  const auto refused = [](auto change) {
    View view = first_view(3, 1);
    change(view);
    const Letter letter{.from = id_of(1), .to = id_of(2), .body = Start{view}};
    return error_text([&] { decode_letter(encode(letter)); });
  };
  EXPECT_EQ(refused([](View&) {}), "");
  EXPECT_THAT(refused([](View& v) { v.epoch = 0; }), HasSubstr("epochs begin at 1"));
  EXPECT_THAT(refused([](View& v) { v.members.clear(); }), HasSubstr("no members"));
  EXPECT_THAT(refused([](View& v) { v.keepers.pop_back(); }),
              HasSubstr("2 keepers, an odd number"));
  EXPECT_THAT(refused([](View& v) { v.keepers.assign(7, id_of(1)); }), HasSubstr("7 keepers"));
  EXPECT_THAT(refused([](View& v) { v.keepers[1] = v.keepers[0]; }),
              HasSubstr("a keeper stands in it twice"));
  EXPECT_THAT(refused([](View& v) { v.keepers[0] = id_of(77); }),
              HasSubstr("neither a member nor a witness"));
  EXPECT_THAT(refused([](View& v) { v.members[1] = v.members[0]; }),
              HasSubstr("a member stands in it twice"));
  EXPECT_THAT(refused([](View& v) { v.witnesses[0] = v.members[0]; }),
              HasSubstr("a member stands in it twice"));
  EXPECT_THAT(refused([](View& v) { v.removed = members_of(50, 17); }),
              HasSubstr("names 17 removed"));
  EXPECT_THAT(refused([](View& v) { v.admission.used.resize(1); }),
              HasSubstr("names 1 used join tokens, at most 0"));
  EXPECT_THAT(refused([](View& v) { v.fresh = 4; }), HasSubstr("4 of 3 members are fresh"));
  EXPECT_THAT(refused([](View& v) { v.members[2].width = 4; }), HasSubstr("has 4 ranks, member"));
}

// A length of four billion takes no memory.
TEST(LetterBytes, LengthsAreCheckedBeforeMemoryIsTaken) {
  Letter letter{.from = id_of(1), .to = id_of(2), .body = ForkAsk{{1, id_of(1)}, {id_of(2)}}};
  wire::Bytes bytes = encode(letter);
  const std::size_t at = bytes.size() - 20;
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = std::byte{0xff};
  EXPECT_THAT(error_text([&] { decode_letter(bytes); }),
              HasSubstr("4294967295 elements, at most 4096"));
}

// 4096 of them with names of 4096 characters would be 16 MiB for one member.
TEST(LetterBytes, AMemberHasFewEndpoints) {
  Join join{.who = member_of(1)};
  const auto error = [&](std::size_t endpoints) {
    join.who.endpoints.resize(endpoints);
    const wire::Bytes bytes = encode(Letter{.from = id_of(1), .to = id_of(2), .body = join});
    return error_text([&] { decode_letter(bytes); });
  };
  EXPECT_EQ(error(16), "");
  EXPECT_THAT(error(17), HasSubstr("17 elements, at most 16"));
}

TEST(LetterBytes, KeepersAreAnOddNumberOfMembersFirst) {
  const auto keepers = [](std::uint64_t members, std::uint64_t witnesses) {
    return choose_keepers(members_of(1, members), members_of(100, witnesses)).size();
  };
  EXPECT_EQ(keepers(1, 0), 1u);
  EXPECT_EQ(keepers(2, 0), 1u);
  EXPECT_EQ(keepers(3, 0), 3u);
  EXPECT_EQ(keepers(4, 0), 3u);
  EXPECT_EQ(keepers(9, 1), 5u);
  EXPECT_EQ(keepers(2, 1), 3u);
  EXPECT_EQ(choose_keepers(members_of(1, 2), members_of(100, 1)).back(), id_of(100));
  EXPECT_EQ(choose_keepers(members_of(1, 3), members_of(100, 1)).back(), id_of(3));
}

}  // namespace
}  // namespace shoal::collective::letter_bytes_test
