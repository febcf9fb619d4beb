#pragma once

#include <cstddef>

#include "shoal/base/element_type.h"
#include "shoal/collective/operation.h"

namespace shoal::comm {

/// Which integers a library reduces.
enum class Integers {
  kBasic,  ///< u8, i8, i32, i64: c10d's backends
  kAll,    ///< of every width: MPI
};

/// What a library of collectives is asked for in the place of a reduction, so that the result
/// follows Shoal's rules whatever the library does: sums, products and bitwise reductions of
/// integers, sums and products of f32 and f64, minima and maxima of integers. Of these all
/// libraries have one idea.
///   fp16, bf16, fp8: travel as f32, so that they accumulate in it and round once;
///   averages: a sum, divided where it arrives; pre-multiplied sums: multiplied before they leave;
///   minima and maxima of floats: as integers in the order of the floats, NaN at the end that wins;
///   bool: as u8, sum is "or" and product "and"; complex numbers: as pairs.
struct Carrier {
  ElementType type;
  collective::Reduction reduction;
  std::size_t parts = 1;  ///< elements of `type` that carry one element
  bool packs = false;    ///< what is contributed must go through `pack`; otherwise the memory is as
                         ///< good as it is
  bool unpacks = false;  ///< the result must go through `unpack`
};

/// `collective::supports_fold(type, reduction)` holds.
Carrier carrier_of(ElementType type, collective::Reduction reduction, Integers integers);

/// `count` elements of `type` into `count * parts` of the carrier's. `from` and `to` do not
/// overlap.
void pack(const Carrier& carrier, ElementType type, collective::Reduction reduction, double scale,
          const void* from, void* to, std::size_t count);

/// The other way, of the result of `ranks` ranks. `from` may be `to` when the types have one size.
void unpack(const Carrier& carrier, ElementType type, collective::Reduction reduction, int ranks,
            const void* from, void* to, std::size_t count);

}  // namespace shoal::comm
