#include "shoal/collective/fold/fold.h"

#include <cstdint>
#include <type_traits>

#include "shoal/base/narrow_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/collective/fold/fold.cpp"
#include <hwy/foreach_target.h>
// Highway's own headers come after foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::collective {
namespace HWY_NAMESPACE {

#include "shoal/collective/fold/fold_kernel.h"

void fold_all(ElementType type, Reduction reduction, const void* const* source, int sources,
              void* const* target, int targets, std::size_t count, double scale) {
  switch (type) {
    case ElementType::kBool: {
      // One byte, 0 or 1: sum and maximum are "or", product and minimum "and".
      if (reduction == Reduction::kSum || reduction == Reduction::kMax)
        reduction = Reduction::kBitOr;
      if (reduction == Reduction::kProduct || reduction == Reduction::kMin)
        reduction = Reduction::kBitAnd;
      return fold_reduction<std::uint8_t>(reduction, source, sources, target, targets, count, 1);
    }
    case ElementType::kU8:
      return fold_reduction<std::uint8_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI8:
      return fold_reduction<std::int8_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kU16:
      return fold_reduction<std::uint16_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI16:
      return fold_reduction<std::int16_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kU32:
      return fold_reduction<std::uint32_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI32:
      return fold_reduction<std::int32_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kU64:
      return fold_reduction<std::uint64_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI64:
      return fold_reduction<std::int64_t>(reduction, source, sources, target, targets, count, 1);
    // Types narrower than fp32 are added in fp32 and rounded once, when the result is stored
    // (fold_kernel.h).
    case ElementType::kF8E4M3:
      return fold_reduction<Float8E4M3>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF8E5M2:
      return fold_reduction<Float8E5M2>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF16:
      return fold_reduction<Float16>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kBF16:
      return fold_reduction<BFloat16>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF32:
      return fold_reduction<float>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF64:
      return fold_reduction<double>(reduction, source, sources, target, targets, count, scale);
    // Complex numbers are added and scaled by parts, as twice as many real ones.
    case ElementType::kC64:
      return fold_reduction<float>(reduction, source, sources, target, targets, 2 * count, scale);
    case ElementType::kC128:
      return fold_reduction<double>(reduction, source, sources, target, targets, 2 * count, scale);
  }
}

void widen_narrow(ElementType type, const void* from, float* to, std::size_t count) {
  switch (type) {
    case ElementType::kF8E4M3:
      return widen_all(static_cast<const Float8E4M3*>(from), to, count);
    case ElementType::kF8E5M2:
      return widen_all(static_cast<const Float8E5M2*>(from), to, count);
    case ElementType::kF16:
      return widen_all(static_cast<const Float16*>(from), to, count);
    default:
      return widen_all(static_cast<const BFloat16*>(from), to, count);
  }
}

void narrow_wide(ElementType type, const float* from, void* to, std::size_t count) {
  switch (type) {
    case ElementType::kF8E4M3:
      return narrow_all(from, static_cast<Float8E4M3*>(to), count);
    case ElementType::kF8E5M2:
      return narrow_all(from, static_cast<Float8E5M2*>(to), count);
    case ElementType::kF16:
      return narrow_all(from, static_cast<Float16*>(to), count);
    default:
      return narrow_all(from, static_cast<BFloat16*>(to), count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::collective
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::collective {

// The code above was compiled once for every instruction set; these choose the best at run time.
HWY_EXPORT(fold_all);
HWY_EXPORT(widen_narrow);
HWY_EXPORT(narrow_wide);

void widen(ElementType type, const void* from, float* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_narrow)(type, from, to, count);
}
void narrow(ElementType type, const float* from, void* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(narrow_wide)(type, from, to, count);
}

void fold(ElementType type, Reduction reduction, const void* const* source, int sources,
          void* const* target, int targets, std::size_t count, double scale) {
  HWY_DYNAMIC_DISPATCH(fold_all)(type, reduction, source, sources, target, targets, count, scale);
}

bool supports_fold(ElementType type, Reduction reduction) {
  const bool complex = type == ElementType::kC64 || type == ElementType::kC128;
  const bool floating = is_floating(type);
  switch (reduction) {
    case Reduction::kSum:
      return true;
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kMax:
      return !complex;
    case Reduction::kAverage:
    case Reduction::kPremulSum:
      return floating || complex;
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      return !floating && !complex;
  }
  return false;
}

}  // namespace shoal::collective
#endif
