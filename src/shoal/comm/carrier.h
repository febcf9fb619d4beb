#pragma once

#include <cstddef>

#include "shoal/base/element_type.h"
#include "shoal/collective/operation.h"

namespace shoal::comm {

/// Says which integers a library reduces.
enum class Integers {
  kBasic,  ///< u8, i8, i32 and i64, as c10d's backends do
  kAll,    ///< integers of every width, as MPI does
};

/// Describes the reduction that a library is asked for in the place of Shoal's, so that results
/// follow Shoal's rules whatever the library does. Only reductions on whose meaning all libraries
/// agree are used: sums, products and bitwise reductions of integers, sums and products of f32 and
/// f64, minima and maxima of integers. fp16, bf16, fp8: travel as f32, so that they accumulate in
/// it and round once; averages: a sum that the receiver divides; pre-multiplied sums: the sender
/// multiplies; minima and maxima of floats: as integers in the order of the floats, NaN at the
/// winning end; bool: as u8, sum is "or" and product "and"; complex numbers: as pairs.
struct Carrier {
  ElementType type;
  collective::Reduction reduction;
  std::size_t parts = 1;  ///< elements of `type` that carry one element
  bool packs = false;     ///< contributions must go through `pack`; else they are sent as they are
  bool unpacks = false;   ///< the result must go through `unpack`
};

/// Chooses the carrier of a reduction for which `collective::supports_fold(type, reduction)` holds.
Carrier carrier_of(ElementType type, collective::Reduction reduction, Integers integers);

/// Converts `count` elements of `type` into `count * parts` of the carrier's. `from` and `to` do
/// not overlap.
void pack(const Carrier& carrier, ElementType type, collective::Reduction reduction, double scale,
          const void* from, void* to, std::size_t count);

/// Converts the carrier's result over `ranks` ranks into `count` elements of `type`. `from` may be
/// `to` when the types have one size.
void unpack(const Carrier& carrier, ElementType type, collective::Reduction reduction, int ranks,
            const void* from, void* to, std::size_t count);

}  // namespace shoal::comm
