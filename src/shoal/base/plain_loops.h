#pragma once

#include <cstddef>
#include <cstdint>

/// Loops that do one thing as fast as a core does it, in the widest instruction set in use. Peaks
/// are measured with them, so that Shoal's own kernels are not compared with themselves.
namespace shoal::plain_loops {

/// Multiplies and adds float32 numbers in registers, `rounds` times twelve independent vectors.
/// Returns the FLOPs done, two for each multiply-add; `result` takes a value that depends on all.
double multiply_add(std::int64_t rounds, float* result);

/// Computes y[i] = y[i] + 3 x[i] for `count` elements. Returns the bytes that it reads and writes,
/// 12 for each element. In place, so that memory moves no more: a processor reads the lines of a
/// result that lies elsewhere before it writes them.
double axpy(const float* x, float* y, std::size_t count);

}  // namespace shoal::plain_loops
