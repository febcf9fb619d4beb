#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace shoal::train {

/// Writes 48 documents of sentences below `folder`, 80 kB. They are always the same: with the text
/// of the sources, each change of those would change what tests train on.
inline void write_small_text(const std::string& folder) {
  constexpr std::array kWords{
      "the",     "rank", "of",     "a",      "group",  "sends", "its",    "part",
      "to",      "next", "one",    "and",    "waits",  "until", "all",    "have",
      "read",    "what", "was",    "there",  "before", "it",    "writes", "again",
      "when",    "no",   "other",  "holds",  "memory", "that",  "they",   "share",
      "each",    "step", "begins", "with",   "tokens", "from",  "text",   "loss",
      "falls",   "as",   "model",  "learns", "which",  "words", "follow", "others",
      "by",      "how",  "often",  "they",   "meet",   "in",    "long",   "rows",
      "numbers", "are",  "summed", "order",  "same",   "bits",  "come",   "out"};
  std::filesystem::create_directories(folder);
  std::uint64_t state = 2;
  const auto random = [&state](std::uint64_t below) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % below;
  };
  std::size_t word = 0;
  for (int document = 0; document < 48; ++document) {
    std::ofstream out(folder + "/" + std::to_string(document) + ".txt");
    for (int sentence = 0; sentence < 36; ++sentence) {
      for (std::uint64_t left = 4 + random(8); left > 0; --left) {
        // A word has five that may follow it, the first ones more often than the last.
        const std::uint64_t choice = random(5) * random(5) / 4;
        word = (7 * word + 11 * choice + 3) % kWords.size();
        out << kWords[word] << (left > 1 ? " " : ".\n");
      }
    }
  }
}

}  // namespace shoal::train
