#include "shoal/collective/fold/fold.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "shoal/base/narrow_float.h"
#include "shoal/collective/shared_memory/stream_copy.h"
#include "tests/every_target.h"
#include "tests/support/fold_plain.h"

namespace shoal::collective::fold_test {
namespace {

constexpr int kTypes = static_cast<int>(ElementType::kC128) + 1,
              kReductions = static_cast<int>(Reduction::kPremulSum) + 1;

/// Of premultiplied sums: products with it are rounded, so that a fused multiply-add shows.
constexpr double kScale = 0.3;

/// Random bits that are valid values of the type: bools are 0 or 1, floats finite and of moderate
/// size.
std::vector<std::byte> values(ElementType type, std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count * size_of(type) + 64);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * size_of(type);
    const float x = std::normal_distribution<float>(0, 3)(random);
    const std::uint64_t any = random() * 0x100000001ull;
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    switch (type) {
      case ElementType::kBool:
        put(static_cast<std::uint8_t>(any & 1));
        break;
      case ElementType::kF8E4M3:
        put(narrow_e4m3(x));
        break;
      case ElementType::kF8E5M2:
        put(narrow_e5m2(x));
        break;
      case ElementType::kF16:
        put(narrow_f16(x));
        break;
      case ElementType::kBF16:
        put(narrow_bf16(x));
        break;
      case ElementType::kF32:
        put(x);
        break;
      case ElementType::kF64:
        put(static_cast<double>(x));
        break;
      case ElementType::kC64:
        put(std::pair{x, x / 3});
        break;
      case ElementType::kC128:
        put(std::pair{double{x}, double{x} / 3});
        break;
      default:
        std::memcpy(at, &any, size_of(type));
    }
  }
  return bytes;
}

// Bitwise: both take the same operations in the same order, and vectors round like scalars.
TEST(Fold, EqualsThePlainLoopForEveryTypeReductionAndShape) {
  std::mt19937 random(5);
  for (int t = 0; t < kTypes; ++t) {
    for (int r = 0; r < kReductions; ++r) {
      const auto type = static_cast<ElementType>(t);
      const auto reduction = static_cast<Reduction>(r);
      if (!supports_fold(type, reduction)) continue;
      for (const int sources : {1, 2, 3, 5}) {
        for (const std::size_t count : {0, 1, 7, 64, 1023, 2500}) {
          for (const bool in_place : {false, true}) {
            std::vector<std::vector<std::byte>> in;
            std::vector<std::vector<std::byte>> out(sources);
            std::vector<const void*> from;
            std::vector<void*> to;
            std::vector<void*> expected_to;
            for (int s = 0; s < sources; ++s) in.push_back(values(type, count, random));
            std::vector<std::vector<std::byte>> expected(sources,
                                                         std::vector<std::byte>(in[0].size()));
            for (int s = 0; s < sources; ++s)
              expected_to.push_back(expected[s].data()), from.push_back(in[s].data());
            fold_plain(type, reduction, from.data(), sources, expected_to.data(), sources, count,
                       kScale);
            for (int s = 0; s < sources; ++s)
              out[s].resize(in[s].size()), to.push_back(in_place ? in[s].data() : out[s].data());
            fold(type, reduction, from.data(), sources, to.data(), in_place ? sources : 1, count,
                 kScale);
            for (int s = 0; s < (in_place ? sources : 1); ++s) {
              ASSERT_EQ(std::memcmp(to[s], expected[s].data(), count * size_of(type)), 0)
                  << name(type) << " " << name(reduction) << " sources=" << sources
                  << " count=" << count << " in place=" << in_place;
            }
            if (in_place) continue;
            // In the place of each source in turn.
            for (int s = 0; s < sources; ++s) {
              const std::vector<std::byte> kept = in[s];
              void* target = in[s].data();
              fold(type, reduction, from.data(), sources, &target, 1, count, kScale);
              ASSERT_EQ(std::memcmp(target, expected[0].data(), count * size_of(type)), 0)
                  << name(type) << " " << name(reduction) << " sources=" << sources
                  << " count=" << count << " in the place of source " << s;
              in[s] = kept, from[s] = in[s].data();
            }
          }
        }
      }
    }
  }
}

TEST(Fold, FloatsHaveTheSameBitsOnEveryInstructionSet) {
  constexpr std::size_t kCount = 2077;
  std::mt19937 random(7);
  for (const ElementType type :
       {ElementType::kF8E4M3, ElementType::kF8E5M2, ElementType::kF16, ElementType::kBF16,
        ElementType::kF32, ElementType::kF64, ElementType::kC64, ElementType::kC128}) {
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kAverage, Reduction::kPremulSum}) {
      std::vector<std::vector<std::byte>> in;
      std::vector<const void*> from;
      for (int s = 0; s < 3; ++s) in.push_back(values(type, kCount, random));
      for (int s = 0; s < 3; ++s) from.push_back(in[s].data());
      std::vector<std::byte> expected(in[0].size());
      void* to = expected.data();
      fold_plain(type, reduction, from.data(), 3, &to, 1, kCount, kScale);
      on_every_target([&](const std::string& target) {
        std::vector<std::byte> out(expected.size());
        void* there = out.data();
        fold(type, reduction, from.data(), 3, &there, 1, kCount, kScale);
        EXPECT_EQ(out, expected) << target << " " << name(type) << " " << name(reduction);
      });
    }
  }
}

/// One number of a narrow type as fp32, and back, by the functions of one element.
float widen_one(ElementType type, std::uint16_t bits) {
  const auto byte = static_cast<std::uint8_t>(bits);
  return type == ElementType::kF8E4M3   ? widen(Float8E4M3{byte})
         : type == ElementType::kF8E5M2 ? widen(Float8E5M2{byte})
         : type == ElementType::kF16    ? widen(Float16{bits})
                                        : widen(BFloat16{bits});
}
std::uint16_t narrow_one(ElementType type, float x) {
  return type == ElementType::kF8E4M3   ? narrow_e4m3(x).bits
         : type == ElementType::kF8E5M2 ? narrow_e5m2(x).bits
         : type == ElementType::kF16    ? narrow_f16(x).bits
                                        : narrow_bf16(x).bits;
}

// Every pattern of a narrow type, not-a-numbers among them, and fp32 patterns of every exponent.
TEST(Fold, ConversionsHaveTheSameBitsOnEveryInstructionSet) {
  std::mt19937 random(11);
  std::vector<float> floats(40000);
  for (float& x : floats) x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  for (const ElementType type :
       {ElementType::kF8E4M3, ElementType::kF8E5M2, ElementType::kF16, ElementType::kBF16}) {
    const std::size_t bytes = size_of(type);
    const std::size_t patterns = bytes == 1 ? 256 : 65536;
    std::vector<std::byte> all(patterns * bytes);
    for (std::size_t i = 0; i < patterns; ++i) std::memcpy(all.data() + i * bytes, &i, bytes);
    on_every_target([&](const std::string& target) {
      std::vector<float> wide(patterns);
      widen(type, all.data(), wide.data(), patterns);
      for (std::size_t i = 0; i < patterns; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
                  std::bit_cast<std::uint32_t>(widen_one(type, static_cast<std::uint16_t>(i))))
            << target << " " << name(type) << " " << i;
      }
      std::vector<std::byte> narrowed(floats.size() * bytes);
      narrow(type, floats.data(), narrowed.data(), floats.size());
      for (std::size_t i = 0; i < floats.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, narrowed.data() + i * bytes, bytes);
        ASSERT_EQ(bits, narrow_one(type, floats[i])) << target << " " << name(type) << floats[i];
      }
    });
  }
}

TEST(StreamCopy, MovesEveryByteAtAnyAlignment) {
  std::vector<std::byte> from(5000);
  std::vector<std::byte> to(5000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const std::size_t read : {0, 1, 13, 64}) {
    for (const std::size_t write : {0, 1, 31, 63, 64}) {
      for (const std::size_t bytes : {0, 1, 63, 64, 65, 200, 4096, 4900}) {
        std::fill(to.begin(), to.end(), std::byte{0});
        stream_copy(to.data() + write, from.data() + read, bytes);
        stream_fence();
        ASSERT_EQ(std::memcmp(to.data() + write, from.data() + read, bytes), 0)
            << read << " " << write << " " << bytes;
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool beside = i < write || i >= write + bytes;
          ASSERT_TRUE(!beside || to[i] == std::byte{0})
              << "byte " << i << " beside the " << bytes << " at " << write;
        }
      }
    }
  }
}

TEST(Fold, MinimumAndMaximumKeepNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    const float a[2] = {nan, 1};
    const float b[2] = {1, nan};
    float out[2];
    const void* from[] = {a, b};
    void* to[] = {out};
    fold(ElementType::kF32, reduction, from, 2, to, 1, 2);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1])) << name(reduction);
  }
}

/// The nearest value of a small float type, ties to the even code, found by trying every code.
template <class T, class Bits>
double nearest(double x, int codes, bool (*finite)(Bits)) {
  double best = 0;
  double distance = std::numeric_limits<double>::infinity();
  int best_code = 0;
  for (int code = 0; code < codes; ++code) {
    if (!finite(static_cast<Bits>(code))) continue;
    const double value = widen(T{static_cast<Bits>(code)});
    const double d = std::abs(value - x);
    if (d < distance || (d == distance && code % 2 == 0 && best_code % 2 == 1))
      best = value, distance = d, best_code = code;
  }
  return best;
}

TEST(NarrowFloat, RoundsToNearestEven) {
  std::mt19937 random(9);
  const auto e4m3_finite = [](std::uint8_t b) { return (b & 0x7f) != 0x7f; };
  const auto e5m2_finite = [](std::uint8_t b) { return (b & 0x7c) != 0x7c; };
  for (int i = 0; i < 20000; ++i) {
    const float x = std::normal_distribution<float>()(random) *
                    std::exp2(static_cast<float>(static_cast<int>(random() % 24) - 16));
    if (std::abs(x) <= 448) {
      ASSERT_EQ(widen(narrow_e4m3(x)), (nearest<Float8E4M3, std::uint8_t>(x, 256, +e4m3_finite)))
          << x;
    }
    if (std::abs(x) <= 57344) {
      ASSERT_EQ(widen(narrow_e5m2(x)), (nearest<Float8E5M2, std::uint8_t>(x, 256, +e5m2_finite)))
          << x;
    }
  }
}

// The compiler's own type is IEEE binary16 on every processor. GCC 12 has no _Float16 on Arm.
#if defined(__aarch64__)
using CompilersHalf = __fp16;
#else
using CompilersHalf = _Float16;
#endif

TEST(NarrowFloat, HalfEqualsTheCompilersForEveryCodeAndManyFloats) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    CompilersHalf half;
    std::memcpy(&half, &bits, 2);
    const float expected = static_cast<float>(half);
    const float got = widen(Float16{bits});
    ASSERT_TRUE(expected == got || (std::isnan(expected) && std::isnan(got))) << code;
  }
  std::mt19937 random(11);
  for (int i = 0; i < 300000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(x)) continue;
    const auto half = static_cast<CompilersHalf>(x);
    std::uint16_t expected;
    std::memcpy(&expected, &half, 2);
    ASSERT_EQ(narrow_f16(x).bits, expected) << x;
  }
}

TEST(NarrowFloat, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(narrow_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(narrow_bf16(std::bit_cast<float>(0x3f808000u)).bits,
            0x3f80);  // a tie goes to the even neighbour
  EXPECT_EQ(narrow_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(narrow_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(narrow_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(widen(narrow_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace shoal::collective::fold_test
