#include "shoal/data/text_pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "shoal/base/check.h"

namespace shoal::data {
namespace {

const OnigUChar* address(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

void initialize_oniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

std::string message_of(int code, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return {reinterpret_cast<const char*>(text), static_cast<std::size_t>(length)};
}

struct RegionDeleter {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};

}  // namespace

struct TextPattern::Compiled {
  std::string pattern;
  regex_t* regex = nullptr;
  ~Compiled() { onig_free(regex); }
};

TextPattern::TextPattern(const std::string& pattern, const std::string& origin) {
  initialize_oniguruma();
  const auto compiled = std::make_shared<Compiled>();
  compiled->pattern = pattern;
  OnigErrorInfo info{};
  const int code = onig_new(&compiled->regex, address(pattern), address(pattern) + pattern.size(),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) {
    compiled->regex = nullptr;
    throw Error(ErrorKind::kData, "tokenizer",
                fmt::format("{}: '{}' is no regular expression: {}", origin, pattern,
                            message_of(code, &info)));
  }
  compiled_ = compiled;
}

void TextPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<OnigRegion, RegionDeleter> region(onig_region_new());
  const OnigUChar* begin = address(text);
  const OnigUChar* end = begin + text.size();
  std::size_t from = 0;  // where the search goes on
  std::size_t cut = 0;   // the border of the last piece
  while (from <= text.size()) {
    const int found = onig_search(compiled_->regex, begin, end, begin + from, end, region.get(),
                                  ONIG_OPTION_NONE);
    if (found == ONIG_MISMATCH) break;
    if (found < 0) {
      throw Error(ErrorKind::kData, "tokenizer",
                  fmt::format("the pattern '{}' of the tokenizer fails on a text of {} bytes: {}",
                              compiled_->pattern, text.size(), message_of(found, nullptr)));
    }
    const auto match_begin = static_cast<std::size_t>(region->beg[0]);
    const auto match_end = static_cast<std::size_t>(region->end[0]);
    if (match_begin > cut) pieces.push_back(text.substr(cut, match_begin - cut));
    if (match_end > match_begin)
      pieces.push_back(text.substr(match_begin, match_end - match_begin));
    cut = std::max(cut, match_end);
    from = match_end;
    // An empty match makes no piece but a border, and the search must go on behind it.
    if (match_end == match_begin) {
      if (from == text.size()) break;
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
    }
  }
  if (cut < text.size()) pieces.push_back(text.substr(cut));
}

}  // namespace shoal::data
