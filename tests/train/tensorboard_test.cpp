#include "shoal/train/report/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "tests/train/temporary_folder.h"

namespace shoal::train::tensorboard_test {
namespace {

template <class T>
T read(const std::string& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// The records of a TFRecord file, both checksums of each held to what was stored.
std::vector<std::string> records(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> all;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = read<std::uint64_t>(bytes, at);
    EXPECT_EQ(read<std::uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    all.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(read<std::uint32_t>(bytes, at + 12 + length), masked_crc32c(all.back()));
    at += 16 + length;
  }
  return all;
}

/// A plain reader of the protocol-buffer wire format: fields by number, numbers as their raw bytes.
std::multimap<int, std::string> fields(const std::string& message) {
  std::multimap<int, std::string> all;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const auto tag = varint();
    std::size_t length = 0;
    std::string value;
    switch (tag & 7) {
      case 0:
        value = std::to_string(varint());
        break;
      case 1:
        length = 8;
        break;
      case 2:
        length = varint();
        break;
      case 5:
        length = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (tag & 7);
    }
    if ((tag & 7) != 0) value = message.substr(at, length), at += length;
    all.emplace(static_cast<int>(tag >> 3), value);
  }
  return all;
}

TEST(Crc32c, KnownAnswers) {
  // RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(EventFile, HoldsWhatWasWritten) {
  const TemporaryFolder folder;
  EventFile file(folder.path() + "/tensorboard", 0);
  file.scalars(1, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
  file.scalars(300, {{"train/loss", 1.25}});
  EXPECT_NE(file.path().find("tfevents"), std::string::npos);
  const auto all = records(file.path());
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(fields(all[0]).find(3)->second, "brain.Event:2");
  EXPECT_EQ(fields(fields(all[1]).find(7)->second).find(1)->second, "1");
  const auto second = fields(all[2]);
  EXPECT_EQ(second.find(2)->second, "1");
  const auto values = fields(second.find(5)->second);
  ASSERT_EQ(values.count(1), 2u);
  const auto loss = fields(values.find(1)->second);
  EXPECT_EQ(loss.find(1)->second, "train/loss");
  EXPECT_EQ(read<float>(loss.find(2)->second, 0), 2.5f);
  EXPECT_EQ(fields(all[3]).find(2)->second, "300");
}

/// The only value of an event's summary.
std::multimap<int, std::string> value_of(const std::string& record) {
  const auto summary = fields(fields(record).find(5)->second);
  EXPECT_EQ(summary.count(1), 1u);
  return fields(summary.find(1)->second);
}

TEST(EventFile, HoldsTextsAndPictures) {
  const TemporaryFolder folder;
  EventFile file(folder.path() + "/tensorboard", 0);
  file.text(7, "job", "[job]\nname = \"x\"\n\nend");
  Pixels pixels(2, 3, {1, 2, 3});
  file.picture(8, "memory", pixels, "two by three");
  const auto all = records(file.path());
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(fields(all[2]).find(2)->second, "7");
  const auto text = value_of(all[2]);
  EXPECT_EQ(text.find(1)->second, "job");
  const auto tensor = fields(text.find(8)->second);
  EXPECT_EQ(tensor.find(1)->second, "7") << "DT_STRING";
  EXPECT_EQ(tensor.find(8)->second, "    [job]\n    name = \"x\"\n    \n    end\n");
  EXPECT_EQ(fields(fields(text.find(9)->second).find(1)->second).find(1)->second, "text");
  const auto picture = value_of(all[3]);
  const auto image = fields(picture.find(4)->second);
  EXPECT_EQ(image.find(1)->second, "3") << "its height";
  EXPECT_EQ(image.find(2)->second, "2");
  EXPECT_EQ(image.find(4)->second, pixels.to_png());
  const auto metadata = fields(picture.find(9)->second);
  EXPECT_EQ(fields(metadata.find(1)->second).find(1)->second, "images");
  EXPECT_EQ(metadata.find(3)->second, "two by three");
}

// A sample may end within a character, and TensorBoard decodes strictly.
TEST(EventFile, TextsAreUtf8) {
  const TemporaryFolder folder;
  EventFile file(folder.path() + "/tensorboard", 0);
  file.text(1, "sample", "a\xE2\x82\n\xC3\xA9\xFFz \"\\");
  const auto text = value_of(records(file.path()).back());
  EXPECT_EQ(fields(text.find(8)->second).find(8)->second,
            "    a\xEF\xBF\xBD\n    \xC3\xA9\xEF\xBF\xBDz \"\\\n");
}

}  // namespace
}  // namespace shoal::train::tensorboard_test
