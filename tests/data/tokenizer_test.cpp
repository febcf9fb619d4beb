#include "shoal/data/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "shoal/base/error.h"
#include "shoal/data/bpe.h"
#include "shoal/data/byte_characters.h"
#include "shoal/data/file.h"
#include "shoal/data/pretoken.h"
#include "tests/data/sentencepiece_model.h"

namespace shoal::data::tokenizer_test {
namespace {

constexpr const char* kCode = R"(#pragma once

#include <vector>

namespace shoal {
/// Größe, 大きさ.
template <class T>
inline int64_t size_of(const std::vector<T>& values) {
	for (const auto& value : values) {
        if (value == 0x1234ffu) return static_cast<int64_t>(values.size());
    }
    return -1;  // ----------------------------------------------------------------------------
}
}  // namespace shoal
)";

std::shared_ptr<const Tokenizer> small_bpe() {
  PretokenCounts counts;
  for (int i = 0; i < 3; ++i) count_pretokens(kCode, counts);
  return train_bpe(counts, 400);
}

/// Texts that tokenizers are known to damage.
std::vector<std::string> hard_cases() {
  using std::string_literals::operator""s;
  std::vector<std::string> cases = {"",
                                    " ",
                                    "  ",
                                    "\n",
                                    "\r\n",
                                    "\t",
                                    "\t\t \n \t",
                                    " a",
                                    "a ",
                                    " a ",
                                    "a  b",
                                    "\0"s,
                                    "a\0b"s,
                                    "\0\0\0"s,
                                    "\x01\x02\x7f",
                                    "\xff",
                                    "\xfe\xff",
                                    "\xc3",
                                    "\xe2\x96",
                                    "\xe2\x96\x81",
                                    "\xe2\x96\x81\xe2\x96\x81hello\xe2\x96\x81",
                                    "\xe2\x81\x87",
                                    " \xe2\x81\x87 ",
                                    "<s>",
                                    "</s>",
                                    "<unk>",
                                    "<pad>",
                                    "<0x0A>",
                                    "<0x00><0xFF>",
                                    "<|endofdocument|>",
                                    "<|endoftext|>",
                                    "\xef\xbb\xbf#include",
                                    "\xed\xa0\x80",
                                    "\xf4\x90\x80\x80",
                                    "\xc0\x80",
                                    "e\xcc\x81",
                                    "\xc3\xa9",
                                    "\xef\xac\x81",
                                    "\xef\xbc\xa1",
                                    "\xc2\xa0",
                                    "\xe3\x80\x80",
                                    "\xc4\xa0hello",
                                    "\xc4\x8a",
                                    "a\tb\t1",
                                    "\t5",
                                    "  leading",
                                    "trailing  ",
                                    "line\rline\r\nline\n",
                                    "\x0b\x0c",
                                    std::string(1000, ' '),
                                    std::string(1000, 'a'),
                                    std::string(1000, '\n'),
                                    std::string(1000, '\0'),
                                    std::string(500, '\xff'),
                                    std::string(63, 'x') + "\xc3\xa9" + std::string(70, 'y'),
                                    "\xc2\x85",
                                    "\xe2\x80\xa8",
                                    kCode};
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  cases.push_back(every);
  cases.push_back(every + every);
  return cases;
}

std::string random_bytes(std::mt19937& random, const std::string& alphabet) {
  std::string text(random() % 200, '\0');
  for (char& c : text)
    c = alphabet.empty() ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
  return text;
}

void expect_lossless(const Tokenizer& tokenizer) {
  for (const std::string& text : hard_cases())
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  std::mt19937 random(1);
  const std::string code(kCode);
  for (int i = 0; i < 20'000; ++i) {
    // Any bytes; blanks and pieces of U+2581; text of the training set cut anywhere.
    std::string text = random_bytes(random, i % 3 == 0 ? "" : " \n\t\r_a<>s/\xe2\x96\x81");
    if (i % 3 == 2) text += code.substr(random() % code.size(), random() % 100);
    const auto ids = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(ids), text);
    for (const std::uint32_t id : ids) {
      ASSERT_LT(id, tokenizer.vocab_size());
      ASSERT_NE(id, tokenizer.end_of_document());
    }
  }
}

TEST(Tokenizer, ByteLevelIsLossless) { expect_lossless(*byte_tokenizer()); }

TEST(Tokenizer, BpeIsLossless) { expect_lossless(*small_bpe()); }

TEST(Tokenizer, BpeWithoutMergesIsLossless) {
  PretokenCounts counts;
  count_pretokens("abab", counts);
  expect_lossless(*train_bpe(counts, 258));
}

TEST(Tokenizer, BpeCompressesWhatItWasTrainedOn) {
  const auto tokenizer = small_bpe();
  EXPECT_EQ(tokenizer->vocab_size(), 400u);
  const std::string code(kCode);
  EXPECT_LT(tokenizer->encode(code).size() * 2, code.size());
}

TEST(Tokenizer, BpeMergesTheMostFrequentPairFirst) {
  // "ab" occurs 30 times and is the first pair; then "abc" (20), so that "abc" is one token and
  // "ab" another.
  PretokenCounts counts{{"abc", 20}, {"abd", 10}};
  const auto tokenizer = train_bpe(counts, 259);
  ASSERT_EQ(tokenizer->vocab_size(), 259u);
  EXPECT_EQ(tokenizer->encode("abc").size(), 1u);
  EXPECT_EQ(tokenizer->encode("abd").size(), 2u);
  EXPECT_EQ(tokenizer->encode("abcabc").size(), 2u);
}

TEST(Tokenizer, TrainingIsDeterministic) {
  EXPECT_EQ(small_bpe()->serialize(), small_bpe()->serialize());
}

TEST(Tokenizer, SurvivesTheFile) {
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("shoal_tokenizer_{}", ::getpid());
  for (const auto& tokenizer : {byte_tokenizer(), small_bpe()}) {
    tokenizer->save(path);
    const auto loaded = load_tokenizer(path);
    EXPECT_EQ(loaded->name(), tokenizer->name());
    EXPECT_EQ(loaded->checksum(), tokenizer->checksum());
    EXPECT_EQ(loaded->encode(kCode), tokenizer->encode(kCode));
  }
  std::filesystem::remove(path);
}

TEST(Tokenizer, RefusesDamagedFiles) {
  const std::string model = small_bpe()->serialize();
  for (const std::string& damaged :
       {std::string(), std::string("hello"), model.substr(0, 30), model.substr(0, model.size() / 2),
        std::string("shoal-tokenizer 1 bpe\n"), std::string("shoal-tokenizer 2 byte\n")}) {
    try {
      parse_tokenizer(damaged, "some/file");
      FAIL() << "accepted " << damaged.size() << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find("some/file"), std::string::npos) << error.what();
    }
  }
}

TEST(Tokenizer, RefusesModelsThatWouldLoseBytes) {
  const std::string head = "shoal-tokenizer 1 bpe\n";
  const std::string model = small_bpe()->serialize().substr(head.size());
  const auto refuses = [&](const std::string& changed, const std::string& words) {
    try {
      parse_tokenizer(head + changed, "some/file");
      ADD_FAILURE() << "taken; expected: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_EQ(error.message(), "some/file: " + words);
    }
  };
  const auto joined = [](const std::vector<std::string>& fields) {
    std::string all;
    for (const std::string& field : fields) all += field;
    return all;
  };
  EXPECT_EQ(parse_tokenizer(head + model + made_up_entries(2), "")->vocab_size(), 402u);
  refuses(model + entry("\xe2\x96\x81"), "entry 400 stands for no bytes");
  std::vector<std::string> fields = fields_of_model(model);
  std::swap(fields[0], fields[1]);
  refuses(joined(fields), "entry 0 is not the end of a document");
  fields = fields_of_model(model);
  std::erase_if(fields, [](const std::string& field) {
    return field.substr(0, 1) == "\x0a" && field.substr(2, 3) == "\x0a\x01Z";
  });
  ASSERT_EQ(fields.size() + 1, fields_of_model(model).size());
  refuses(joined(fields), "no entry for byte 90");
}

TEST(Tokenizer, ATokenHasAtMost32Bytes) {
  std::string letters;
  for (int i = 0; i < 26; ++i) letters += {static_cast<char>('a' + i), static_cast<char>('A' + i)};
  const auto longest = [](const std::string& word) {
    const auto tokenizer = train_bpe({{word, 100}}, 400);
    std::size_t most = 0;
    for (std::uint32_t id = 0; id < tokenizer->vocab_size(); ++id)
      most = std::max(most, tokenizer->bytes_of(id).size());
    return most;
  };
  EXPECT_EQ(longest(std::string(64, 'a')), 32u) << "pairs of pairs";
  EXPECT_LE(longest(letters), 32u);
}

TEST(Tokenizer, BytesAreTheirNumbers) {
  const auto tokenizer = byte_tokenizer();
  std::vector<std::uint32_t> ids{7};
  tokenizer->encode(std::string_view("\0a\xff", 3), ids);
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{7, 0, 97, 255})) << "they are appended";
  EXPECT_EQ(tokenizer->bytes_of(255), "\xff");
  EXPECT_EQ(tokenizer->bytes_of(256), "");
  EXPECT_EQ(tokenizer->end_of_document(), 256u);
  EXPECT_EQ(small_bpe()->bytes_of(0), "");
  EXPECT_EQ(small_bpe()->end_of_document(), 0u);
}

TEST(Tokenizer, CountsAddUp) {
  PretokenCounts counts;
  count_pretokens("a b a", counts);
  count_pretokens("a b", counts);
  EXPECT_EQ(counts, (PretokenCounts{{"a", 2}, {" b", 2}, {" a", 1}}));
}

// GPT-2's bytes_to_unicode: printable bytes stand for themselves, the others for U+0100 and on.
TEST(Tokenizer, BytesAreWrittenAsInGpt2) {
  const ByteCharacters characters;
  const auto written = [&](int byte) {
    return characters.write(std::string(1, static_cast<char>(byte)));
  };
  EXPECT_EQ(written(0), "\xc4\x80");
  EXPECT_EQ(written('\n'), "\xc4\x8a");
  EXPECT_EQ(written(' '), "\xc4\xa0");
  EXPECT_EQ(written('!'), "!");
  EXPECT_EQ(written('~'), "~");
  EXPECT_EQ(written(0x7f), "\xc4\xa1");
  EXPECT_EQ(written(0xa0), "\xc5\x82");
  EXPECT_EQ(written(0xa1), "\xc2\xa1");
  EXPECT_EQ(written(0xad), "\xc5\x83");
  EXPECT_EQ(written(0xff), "\xc3\xbf");
  std::string bytes;
  EXPECT_TRUE(characters.read("a\xc4\xa0", bytes));
  EXPECT_EQ(bytes, "a ");
  for (const std::string bad : {"\xc4", "a\xc5\x84", "\xc1\xa1", "\xe2\x96\x81", " ", "\xc4\x20"})
    EXPECT_FALSE(characters.read(bad, bytes)) << bad;
}

TEST(Tokenizer, RefusesImpossibleRequests) {
  EXPECT_THROW(train_bpe({}, 300), Error);
  EXPECT_THROW(train_bpe({{"a", 1}}, 257), Error);
  EXPECT_THROW(train_bpe({{"a", 1}}, 1'000'001), Error);
  EXPECT_THROW(byte_tokenizer()->bytes_of(257), Error);
  EXPECT_THROW(small_bpe()->decode({400}), Error);
}

TEST(Pretoken, CutsCodeWhereAReaderWould) {
  std::vector<std::string> words;
  for (std::string_view text = "for (int i_1 = 0;\n    x += 2) \n"; !text.empty();)
    words.emplace_back(next_pretoken(text));
  const std::vector<std::string> expected = {"for",   " (", "int", " i_1", " =", " 0", ";",
                                             "\n   ", " x", " +=", " 2",   ")",  " \n"};
  EXPECT_EQ(words, expected);
}

std::vector<std::string> cut(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) words.emplace_back(next_pretoken(text));
  return words;
}

TEST(Pretoken, EveryByteHasItsClass) {
  EXPECT_EQ(cut("\x01\x02"
                "a\x7f\x1f b\t\tc  d\xc3\xa9\x80\xff_e!~\n \x01"),
            (std::vector<std::string>{"\x01\x02", "a", "\x7f\x1f", " b", "\t\t", "c", " ",
                                      " d\xc3\xa9\x80\xff_e", "!~", "\n ", "\x01"}));
  EXPECT_EQ(cut("z{Z[9:`a/0@A"),
            (std::vector<std::string>{"z", "{", "Z", "[", "9", ":`", "a", "/", "0", "@", "A"}));
  EXPECT_EQ(cut("\x0b\x0c\r\x0e\x08\t"),
            (std::vector<std::string>{"\x0b\x0c\r", "\x0e\x08", "\t"}));
}

TEST(Pretoken, IsCutAtItsLongest) {
  const auto lengths = [](const std::string& text) {
    std::vector<std::size_t> all;
    for (const std::string& word : cut(text)) all.push_back(word.size());
    return all;
  };
  using Lengths = std::vector<std::size_t>;
  EXPECT_EQ(lengths(std::string(130, 'x')), (Lengths{64, 64, 2}));
  EXPECT_EQ(lengths(" " + std::string(130, 'x')), (Lengths{64, 64, 3}));
  EXPECT_EQ(lengths(std::string(64, ' ') + "a"), (Lengths{63, 2}));
  EXPECT_EQ(lengths(std::string(100, ' ') + "a"), (Lengths{64, 35, 2}));
  EXPECT_EQ(lengths(std::string(64, ' ') + "\n"), (Lengths{64, 1}));
}

}  // namespace
}  // namespace shoal::data::tokenizer_test
