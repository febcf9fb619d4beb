#pragma once

#include <cstddef>
#include <cstdint>

/// Loops that do one thing as fast as a core does it, in the widest instruction set in use. Peaks
/// are measured with them, so that Shoal's own kernels are not compared with themselves.
namespace shoal::plain_loops {

/// Multiplies and adds float32 numbers in registers, `rounds` times twelve independent vectors.
/// Returns the FLOPs done, two for each multiply-add; `result` takes a value that depends on all.
double multiply_add(std::int64_t rounds, float* result);

/// Computes a[i] = b[i] + 3 c[i] for `count` elements (the triad of McCalpin's STREAM). Returns the
/// bytes that it reads and writes, 12 for each element.
double triad(float* a, const float* b, const float* c, std::size_t count);

}  // namespace shoal::plain_loops
