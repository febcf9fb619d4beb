#include "shoal/collective/codec/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>

#include "shoal/base/check.h"
#include "shoal/base/narrow_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/collective/codec/codec.cpp"
#include <hwy/foreach_target.h>
// Highway's own headers come after foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::collective {
namespace HWY_NAMESPACE {

#include "shoal/collective/codec/codec_kernel.h"

std::size_t encode_one(Codec codec, Scratch& s, std::size_t count, bool residuals, std::byte* to) {
  switch (codec) {
    case Codec::kF8E4M3:
      return encode_block<E4M3>(s, count, residuals, to);
    case Codec::kI8:
      return encode_block<I8>(s, count, residuals, to);
    case Codec::kI4:
      return encode_block<I4>(s, count, residuals, to);
    case Codec::kE3M0:
      return encode_block<E3M0>(s, count, residuals, to);
    case Codec::kE2M0:
      return encode_block<E2M0>(s, count, residuals, to);
    default:
      return encode_bf16(s, count, residuals, to);
  }
}

const std::byte* decode_one(Codec codec, Scratch& s, const std::byte* from, std::size_t count) {
  switch (codec) {
    case Codec::kF8E4M3:
      return decode_block<E4M3>(s, from, count);
    case Codec::kI8:
      return decode_block<I8>(s, from, count);
    case Codec::kI4:
      return decode_block<I4>(s, from, count);
    case Codec::kE3M0:
      return decode_block<E3M0>(s, from, count);
    case Codec::kE2M0:
      return decode_block<E2M0>(s, from, count);
    default:
      return decode_bf16(s, from, count);
  }
}

void encode_all(const Coding& coding, std::uint64_t first, const float* values, Feedback feedback,
                std::byte* to, std::size_t count) {
  Scratch s;
  const bool adds = !feedback.residual.empty();
  const bool keeps = !feedback.next.empty();
  if (!coding.stochastic) std::fill_n(s.random, coding.block, kHalf);
  for (std::size_t begin = 0; begin < count; begin += coding.block) {
    const std::size_t n = std::min<std::size_t>(coding.block, count - begin);
    if (coding.stochastic)
      random_numbers(coding.key.value(), first + begin, rounded_up(n), s.random);
    collect(values + begin, adds ? feedback.residual.data() + begin : nullptr, n, s.values);
    to += encode_one(coding.codec, s, n, keeps, to);
    if (keeps) keep_residual(s.values, s.decoded, n, feedback.next.data() + begin);
  }
}

bool decode_all(const Coding& coding, const std::byte* from, float* to, std::size_t count,
                bool adds) {
  Scratch s;
  for (std::size_t begin = 0; begin < count; begin += coding.block) {
    const std::size_t n = std::min<std::size_t>(coding.block, count - begin);
    from = decode_one(coding.codec, s, from, n);
    if (from == nullptr) return false;
    if (adds) {
      for (std::size_t i = 0; i < n; ++i) to[begin + i] += s.decoded[i];
    } else {
      std::memcpy(to + begin, s.decoded, n * sizeof(float));
    }
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::collective
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::collective {

HWY_EXPORT(encode_all);
HWY_EXPORT(decode_all);

void check_residuals(const Feedback& feedback, std::size_t values, const char* operation) {
  for (const std::size_t residuals : {feedback.residual.size(), feedback.next.size()}) {
    SHOAL_USER_CHECK(residuals == 0 || residuals == values, operation, "{} residuals for {} values",
                     residuals, values);
  }
}

void encode(const Coding& coding, std::uint64_t first, std::span<const float> values,
            Feedback feedback, std::span<std::byte> to) {
  check_coding(coding, "encode");
  SHOAL_USER_CHECK(coding.codec != Codec::kNone, "encode", "there is no codec");
  SHOAL_USER_CHECK(first % coding.block == 0, "encode",
                   "values from index {} on: a cut lies at a multiple of the block, {}", first,
                   coding.block);
  const std::size_t bytes = encoded_bytes(coding, values.size());
  SHOAL_USER_CHECK(to.size() == bytes, "encode", "{} values become {} bytes, not {}", values.size(),
                   bytes, to.size());
  check_residuals(feedback, values.size(), "encode");
  HWY_DYNAMIC_DISPATCH(encode_all)
  (coding, first, values.data(), feedback, to.data(), values.size());
}

void decode(const Coding& coding, std::span<const std::byte> from, std::span<float> to,
            Decode how) {
  check_coding(coding, "decode");
  SHOAL_USER_CHECK(coding.codec != Codec::kNone, "decode", "there is no codec");
  const std::size_t bytes = encoded_bytes(coding, to.size());
  if (from.size() != bytes) {
    throw Error(ErrorKind::kData, "decode",
                fmt::format("{} values in {} are {} bytes, not {}", to.size(), name(coding.codec),
                            bytes, from.size()));
  }
  const bool well_formed = HWY_DYNAMIC_DISPATCH(decode_all)(coding, from.data(), to.data(),
                                                            to.size(), how == Decode::kAdd);
  if (!well_formed) {
    throw Error(ErrorKind::kData, "decode",
                fmt::format("bytes that are no values in {}: the unit of a block is negative or "
                            "infinite",
                            name(coding.codec)));
  }
}

}  // namespace shoal::collective
#endif
