// Every element type by every reduction that it has, as all-reduce, reduce and reduce-scatter of 1
// to 9 ranks, in each of the three ways that shared memory has, bit by bit against the arithmetic
// of this file: integers that wrap, floats in the order of ranks, narrow floats added in fp32 and
// rounded once by looking for the nearest value.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "shoal/collective/fold/fold.h"
#include "tests/collective/host_ranks.h"

namespace shoal::collective::every_reduction_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kTypes = static_cast<int>(ElementType::kC128) + 1,
              kReductions = static_cast<int>(Reduction::kPremulSum) + 1;
constexpr double kScale = 0.5;  // products with it are exact, so that it does not matter whether
                                // they are fused with the sum

/// A floating type of a few bits by the list of its finite magnitudes, of which the n-th has the
/// code n.
class Magnitudes {
 public:
  Magnitudes(int exponent_bits, int mantissa_bits, std::uint32_t codes)
      : sign_(1u << (exponent_bits + mantissa_bits)) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (std::uint32_t code = 0; code < codes; ++code) {
      const std::uint32_t exponent = code >> mantissa_bits;
      const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
      const std::uint32_t leading = exponent > 0 ? 1u << mantissa_bits : 0;
      values_.push_back(std::ldexp(
          leading + mantissa, static_cast<int>(std::max(exponent, 1u)) - bias - mantissa_bits));
    }
  }
  double value(std::uint32_t code) const {
    return code & sign_ ? -values_.at(code ^ sign_) : values_.at(code);
  }
  /// Ties go to the even code. `x` is not larger than the largest.
  std::uint32_t nearest(double x) const {
    const double magnitude = std::abs(x);
    auto code = static_cast<std::uint32_t>(
        std::lower_bound(values_.begin(), values_.end(), magnitude) - values_.begin());
    const double above = values_.at(code) - magnitude;
    const double below = code > 0 ? magnitude - values_[code - 1] : above + 1;
    if (below < above || (below == above && code % 2 == 1)) --code;
    return code | (x < 0 ? sign_ : 0);
  }

 private:
  std::uint32_t sign_;
  std::vector<double> values_;
};

const Magnitudes& magnitudes_of(ElementType type) {
  static const Magnitudes e4m3(4, 3, 0x7f);
  static const Magnitudes e5m2(5, 2, 0x7c);
  static const Magnitudes f16(5, 10, 0x7c00);
  static const Magnitudes bf16(8, 7, 0x7f80);
  switch (type) {
    case ElementType::kF8E4M3:
      return e4m3;
    case ElementType::kF8E5M2:
      return e5m2;
    case ElementType::kF16:
      return f16;
    default:
      return bf16;
  }
}

// What becomes of one element, of which rank r has x[r].

std::uint8_t of_bools(Reduction reduction, const std::vector<std::uint8_t>& x) {
  const auto set = std::count(x.begin(), x.end(), 1);
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMax:
    case Reduction::kBitOr:
      return set > 0;
    case Reduction::kBitXor:
      return set % 2 == 1;
    default:
      return set == static_cast<std::ptrdiff_t>(x.size());
  }
}

template <class T>
T of_integers(Reduction reduction, const std::vector<T>& x) {
  if (reduction == Reduction::kMin) return *std::min_element(x.begin(), x.end());
  if (reduction == Reduction::kMax) return *std::max_element(x.begin(), x.end());
  std::uint64_t result = reduction == Reduction::kProduct  ? 1
                         : reduction == Reduction::kBitAnd ? ~std::uint64_t{0}
                                                           : 0;
  for (const T one : x) {
    const auto bits = static_cast<std::uint64_t>(one);
    if (reduction == Reduction::kSum) result += bits;
    if (reduction == Reduction::kProduct) result *= bits;
    if (reduction == Reduction::kBitAnd) result &= bits;
    if (reduction == Reduction::kBitOr) result |= bits;
    if (reduction == Reduction::kBitXor) result ^= bits;
  }
  return static_cast<T>(result);
}

template <class T>
T of_floats(Reduction reduction, const std::vector<T>& x) {
  if (reduction == Reduction::kMin) return *std::min_element(x.begin(), x.end());
  if (reduction == Reduction::kMax) return *std::max_element(x.begin(), x.end());
  const T scale = reduction == Reduction::kPremulSum ? T(kScale) : T(1);
  T result = x[0] * scale;
  for (std::size_t r = 1; r < x.size(); ++r)
    result = reduction == Reduction::kProduct ? result * x[r] : result + x[r] * scale;
  return reduction == Reduction::kAverage ? result / static_cast<T>(x.size()) : result;
}

/// `combine` of each element, `inputs` by rank.
template <class T, class Combine>
Bytes each(const std::vector<Bytes>& inputs, Combine&& combine) {
  Bytes result(inputs[0].size());
  std::vector<T> x(inputs.size());
  for (std::size_t at = 0; at < result.size(); at += sizeof(T)) {
    for (std::size_t r = 0; r < x.size(); ++r) std::memcpy(&x[r], inputs[r].data() + at, sizeof(T));
    const T y = combine(x);
    std::memcpy(result.data() + at, &y, sizeof(T));
  }
  return result;
}

template <class T>
Bytes of_narrow_floats(ElementType type, Reduction reduction, const std::vector<Bytes>& inputs) {
  const Magnitudes& magnitudes = magnitudes_of(type);
  return each<T>(inputs, [&](const std::vector<T>& codes) {
    std::vector<float> x;
    for (const T code : codes) x.push_back(static_cast<float>(magnitudes.value(code)));
    return static_cast<T>(magnitudes.nearest(of_floats(reduction, x)));
  });
}

Bytes reduced(ElementType type, Reduction reduction, const std::vector<Bytes>& inputs) {
  const auto integers = [&]<class T>(T) {
    return each<T>(inputs, [&](const std::vector<T>& x) { return of_integers(reduction, x); });
  };
  const auto floats = [&]<class T>(T) {
    return each<T>(inputs, [&](const std::vector<T>& x) { return of_floats(reduction, x); });
  };
  switch (type) {
    case ElementType::kBool:
      return each<std::uint8_t>(
          inputs, [&](const std::vector<std::uint8_t>& x) { return of_bools(reduction, x); });
    case ElementType::kU8:
      return integers(std::uint8_t{});
    case ElementType::kI8:
      return integers(std::int8_t{});
    case ElementType::kU16:
      return integers(std::uint16_t{});
    case ElementType::kI16:
      return integers(std::int16_t{});
    case ElementType::kU32:
      return integers(std::uint32_t{});
    case ElementType::kI32:
      return integers(std::int32_t{});
    case ElementType::kU64:
      return integers(std::uint64_t{});
    case ElementType::kI64:
      return integers(std::int64_t{});
    case ElementType::kF8E4M3:
    case ElementType::kF8E5M2:
      return of_narrow_floats<std::uint8_t>(type, reduction, inputs);
    case ElementType::kF16:
    case ElementType::kBF16:
      return of_narrow_floats<std::uint16_t>(type, reduction, inputs);
    case ElementType::kF32:
    case ElementType::kC64:
      return floats(float{});
    case ElementType::kF64:
    case ElementType::kC128:
      return floats(double{});
  }
  return {};
}

/// `count` random elements. Floats are of either sign and between 1/2 and 3/2, so that no product
/// of nine leaves the range of any type; every third bool is set on all ranks, every third on none.
Bytes random_elements(ElementType type, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * size_of(type));
  std::uniform_real_distribution<double> between(0.5, 1.5);
  const auto real = [&] { return random() % 2 == 0 ? between(random) : -between(random); };
  const auto fill = [&](auto&& next) {
    for (std::size_t at = 0, i = 0; at < bytes.size(); ++i) {
      const auto value = next(i);
      std::memcpy(bytes.data() + at, &value, sizeof value);
      at += sizeof value;
    }
  };
  switch (type) {
    case ElementType::kBool:
      fill([&](std::size_t i) {
        return static_cast<std::uint8_t>(i % 3 == 0 ? 1 : i % 3 == 1 ? 0 : random() % 2);
      });
      break;
    case ElementType::kF8E4M3:
    case ElementType::kF8E5M2:
      fill([&](std::size_t) {
        return static_cast<std::uint8_t>(magnitudes_of(type).nearest(real()));
      });
      break;
    case ElementType::kF16:
    case ElementType::kBF16:
      fill([&](std::size_t) {
        return static_cast<std::uint16_t>(magnitudes_of(type).nearest(real()));
      });
      break;
    case ElementType::kF32:
    case ElementType::kC64:
      fill([&](std::size_t) { return static_cast<float>(real()); });
      break;
    case ElementType::kF64:
    case ElementType::kC128:
      fill([&](std::size_t) { return real(); });
      break;
    default:
      fill([&](std::size_t) { return static_cast<std::uint8_t>(random()); });
  }
  return bytes;
}

struct Case {
  ElementType type;
  Reduction reduction;
  std::size_t count;
  std::vector<Bytes> inputs;  ///< by rank: `count` elements for each rank
  Bytes expected;             ///< of all of them
};

/// For every type and reduction a contribution that travels in a descriptor or beside it, and one
/// that is read where it lies.
std::vector<Case> cases_of(int ranks) {
  std::mt19937_64 random(static_cast<unsigned>(ranks));
  std::vector<Case> cases;
  for (int t = 0; t < kTypes; ++t) {
    for (int r = 0; r < kReductions; ++r) {
      const auto type = static_cast<ElementType>(t);
      const auto reduction = static_cast<Reduction>(r);
      if (!supports_fold(type, reduction)) continue;
      for (const std::size_t count :
           {std::size_t{r % 2 == 0 ? 1u : 37u}, kPayloadBytes / size_of(type) + 5}) {
        Case& c = cases.emplace_back(Case{type, reduction, count, {}, {}});
        for (int rank = 0; rank < ranks; ++rank) {
          c.inputs.push_back(
              random_elements(type, count * static_cast<std::size_t>(ranks), random));
        }
        c.expected = reduced(type, reduction, c.inputs);
      }
    }
  }
  return cases;
}

/// One rank's part in one call; what is wrong, or nothing. In place: the result begins where the
/// input does, which for a reduce-scatter means that ranks write over what others read.
std::string run(HostCommunicator& c, const Case& what, Kind kind, int root, bool in_place) {
  const auto me = static_cast<std::size_t>(c.rank());
  const std::size_t bytes = what.count * size_of(what.type);
  const std::size_t first = kind == Kind::kReduceScatter ? me * bytes : 0;
  Bytes input = what.inputs[me];
  Bytes output(bytes, std::byte{0x5a});
  Bytes& result = in_place ? input : output;
  c.wait(c.start({.kind = kind,
                  .type = what.type,
                  .reduction = what.reduction,
                  .buffer = {input.data(), result.data(), what.count},
                  .peer = kind == Kind::kReduce ? root : -1,
                  .scale = kScale}));
  const bool gets = kind != Kind::kReduce || c.rank() == root;
  const std::byte* want = gets       ? what.expected.data() + first
                          : in_place ? what.inputs[me].data()
                                     : nullptr;
  const bool right =
      want ? std::memcmp(result.data(), want, bytes) == 0 : output == Bytes(bytes, std::byte{0x5a});
  if (right) return {};
  return fmt::format("{} of {} x {} by {}{}: rank {} of {}", name(kind), what.count,
                     name(what.type), name(what.reduction), in_place ? " in place" : "", me,
                     c.size());
}

std::vector<std::string> run_all(HostCommunicator& c, const std::vector<Case>& cases) {
  std::vector<std::string> wrong;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
      // Short and long ones of a reduction follow each other, and either is in place for every
      // other reduction.
      const std::string text = run(c, cases[i], kind, static_cast<int>(i / 2) % c.size(),
                                   (i / 2 + static_cast<std::size_t>(kind)) % 2 == 0);
      if (!text.empty()) wrong.push_back(text);
    }
  }
  return wrong;
}

TEST(EveryReduction, OfEveryTypeEqualsPlainArithmeticBitByBit) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const auto cases = cases_of(ranks);
    // Eight integer types have seven reductions, and so has bool; six floating ones six; two
    // complex ones three.
    ASSERT_EQ(cases.size(), 2u * (8 * 7 + 7 + 6 * 6 + 2 * 3));
    std::mutex mutex;
    std::vector<std::string> wrong;
    on_threads(ranks, [&](HostCommunicator& c, int) {
      const auto found = run_all(c, cases);
      const std::lock_guard lock(mutex);
      wrong.insert(wrong.end(), found.begin(), found.end());
    });
    EXPECT_THAT(wrong, ::testing::IsEmpty()) << ranks << " ranks";
  }
}

// Processes whose buffers nobody else sees: everything larger passes through shared chunks.
TEST(EveryReduction, OfPrivateMemoryHasTheSameBits) {
  for (const int ranks : {2, 3}) {
    const auto cases = cases_of(ranks);
    const auto codes = on_processes(ranks, [&](HostCommunicator& c, wire::Arena&, int) {
      const auto wrong = run_all(c, cases);
      for (const std::string& text : wrong) fmt::print(stderr, "{}\n", text);
      return wrong.empty() ? 0 : 1;
    });
    EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

}  // namespace
}  // namespace shoal::collective::every_reduction_test
