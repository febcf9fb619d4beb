// Codecs on one core: gigabytes of fp32 a second that are encoded, with error feedback and without,
// and decoded, beside a memcpy of the same values in the same run; and the error of a value that
// was encoded and decoded, as the root of the mean square, in percent of that of the values.
// bench/run.py says how this program is called.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/collective/codec/codec.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kValues = 4 << 20;
constexpr int kRounds = 7;
constexpr double kGiga = 1e9;

enum class Measured { kEncode, kFeedback, kDecode, kError };
constexpr std::pair<Measured, const char*> kMeasured[] = {{Measured::kEncode, "encode"},
                                                          {Measured::kFeedback, "encode_feedback"},
                                                          {Measured::kDecode, "decode"},
                                                          {Measured::kError, "error"}};

std::string name_of(Codec codec, const char* measured) {
  return fmt::format("codec/{}/{}", name(codec), measured);
}

double rate(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return kValues * sizeof(float) / to_seconds(Clock::now() - begin) / kGiga;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double root_mean_square(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

void measure(Codec codec, Measured measured, const char* what) {
  const Coding coding{codec, true, 128, Key(1)};
  std::vector<float> values(kValues);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  std::vector<float> residual(kValues, 0);
  std::vector<float> decoded(kValues, 0);
  std::vector<std::byte> bytes(encoded_bytes(coding, kValues));
  const auto encode_all = [&] { encode(coding, 0, values, {}, bytes); };
  const auto with_feedback = [&] {
    encode(coding, 0, values, {residual.data(), residual.data()}, bytes);
  };
  const auto decode_all = [&] { decode(coding, bytes, decoded, Decode::kStore); };
  const auto copy = [&] { std::memcpy(decoded.data(), values.data(), kValues * sizeof(float)); };

  encode_all();
  decode_all();
  std::vector<float> error(kValues);
  for (std::size_t i = 0; i < kValues; ++i) error[i] = decoded[i] - values[i];
  const double percent = 100 * root_mean_square(error) / root_mean_square(values);
  if (!(percent < 50)) throw Error(ErrorKind::kInternal, "codec_bench", "the values are wrong");
  if (measured == Measured::kError) {
    fmt::print(
        "{{\"case\": \"{}\", \"unit\": \"%\", \"ours\": {:.3f}, \"peer\": null, \"ratio\": "
        "null, \"spread\": null, \"limit\": null}}\n",
        name_of(codec, what), percent);
    return;
  }
  std::function<void()> body = decode_all;
  if (measured == Measured::kEncode) body = encode_all;
  if (measured == Measured::kFeedback) body = with_feedback;
  body();
  copy();
  std::vector<double> us;
  std::vector<double> them;
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    us.push_back(rate(body));
    them.push_back(rate(copy));
    ratios.push_back(us.back() / them.back());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const double ratio = median_of(us) / median_of(them);
  fmt::print(
      "{{\"case\": \"{}\", \"unit\": \"GB/s\", \"ours\": {:.2f}, \"peer\": {:.2f}, "
      "\"ratio\": {:.3f}, \"spread\": {:.3f}, \"limit\": null}}\n",
      name_of(codec, what), median_of(us), median_of(them), ratio, (*most - *least) / ratio);
  std::fflush(stdout);
}

}  // namespace
}  // namespace shoal::collective

int main(int count, char** words) {
  using namespace shoal::collective;
  const std::vector<std::string> asked(words + 1, words + count);
  const auto is_asked = [&](const std::string& word) {
    return std::find(asked.begin(), asked.end(), word) != asked.end();
  };
  try {
    for (const Codec codec : kCodecs) {
      for (const auto& [measured, what] : kMeasured) {
        if (is_asked("--list")) fmt::print("{}\n", name_of(codec, what));
        if (is_asked(name_of(codec, what))) measure(codec, measured, what);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "codec_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
