#pragma once

#include <cstddef>
#include <cstdint>

/// Loops that do one thing as fast as a core does it, in the widest instruction set in use. Peaks
/// are measured with them, so that Shoal's own kernels are not compared with themselves.
namespace shoal::plain_loops {

/// Multiplies and adds float32 numbers in registers, `rounds` times twelve independent vectors.
/// Returns the FLOPs done, two for each multiply-add; `result` takes a value that depends on all.
double multiply_add(std::int64_t rounds, float* result);

/// Multiplies pairs of bf16 numbers and adds both products to float32 sums in registers, `rounds`
/// times twelve independent vectors: for each sum and round 0.5 * 0.5 + 0.25 * 1. Returns the FLOPs
/// done, four for each pair, and in `result` the sum of all sums. Where the processor has no
/// instruction for it (avx512_bf16_usable) does and returns what `multiply_add` does: matmuls of
/// bf16 are then of float32.
double multiply_add_bf16(std::int64_t rounds, float* result);

/// Adds up `count` elements into `result`. Returns the bytes read, 4 for each element.
double read(const float* x, std::size_t count, float* result);
/// Writes `value` into `count` elements. Returns the bytes written, 4 for each element; a processor
/// reads their lines first.
double write(float value, float* y, std::size_t count);
/// Copies `count` elements. Returns the bytes read and written, 8 for each element; a processor
/// reads the lines of the copy first.
double copy(const float* x, float* y, std::size_t count);

/// Computes y[i] = y[i] + 3 x[i] for `count` elements. Returns the bytes that it reads and writes,
/// 12 for each element. In place, so that memory moves no more: a processor reads the lines of a
/// result that lies elsewhere before it writes them.
double axpy(const float* x, float* y, std::size_t count);

}  // namespace shoal::plain_loops
