#include "shoal/base/plain_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/base/plain_loops.cpp"
#include <hwy/foreach_target.h>
// Highway's own headers come after foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::plain_loops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

double MultiplyAdd(std::int64_t rounds, float* result) {
  const hn::ScalableTag<float> d;
  // Towards 1: neither infinite nor so small that the processor slows down.
  const auto factor = hn::Set(d, 0.999f);
  const auto summand = hn::Set(d, 0.001f);
  // Twelve chains hide the latency of two units with four to six cycles each.
  auto s0 = hn::Set(d, 0.0f);
  auto s1 = hn::Set(d, 0.1f);
  auto s2 = hn::Set(d, 0.2f);
  auto s3 = hn::Set(d, 0.3f);
  auto s4 = hn::Set(d, 0.4f);
  auto s5 = hn::Set(d, 0.5f);
  auto s6 = hn::Set(d, 0.6f);
  auto s7 = hn::Set(d, 0.7f);
  auto s8 = hn::Set(d, 0.8f);
  auto s9 = hn::Set(d, 0.9f);
  auto s10 = hn::Set(d, 1.1f);
  auto s11 = hn::Set(d, 1.2f);
  for (std::int64_t round = 0; round < rounds; ++round) {
    s0 = hn::MulAdd(s0, factor, summand);
    s1 = hn::MulAdd(s1, factor, summand);
    s2 = hn::MulAdd(s2, factor, summand);
    s3 = hn::MulAdd(s3, factor, summand);
    s4 = hn::MulAdd(s4, factor, summand);
    s5 = hn::MulAdd(s5, factor, summand);
    s6 = hn::MulAdd(s6, factor, summand);
    s7 = hn::MulAdd(s7, factor, summand);
    s8 = hn::MulAdd(s8, factor, summand);
    s9 = hn::MulAdd(s9, factor, summand);
    s10 = hn::MulAdd(s10, factor, summand);
    s11 = hn::MulAdd(s11, factor, summand);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)),
                                   hn::Add(hn::Add(s8, s9), hn::Add(s10, s11))));
  *result = hn::GetLane(hn::SumOfLanes(d, sum));
  return 2.0 * 12 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

double Read(const float* HWY_RESTRICT x, std::size_t count, float* result) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  // Eight sums: additions of one would be slower than a cache.
  auto s0 = hn::Zero(d);
  auto s1 = s0;
  auto s2 = s0;
  auto s3 = s0;
  auto s4 = s0;
  auto s5 = s0;
  auto s6 = s0;
  auto s7 = s0;
  std::size_t i = 0;
  for (; i + 8 * lanes <= count; i += 8 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, x + i));
    s1 = hn::Add(s1, hn::LoadU(d, x + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, x + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, x + i + 3 * lanes));
    s4 = hn::Add(s4, hn::LoadU(d, x + i + 4 * lanes));
    s5 = hn::Add(s5, hn::LoadU(d, x + i + 5 * lanes));
    s6 = hn::Add(s6, hn::LoadU(d, x + i + 6 * lanes));
    s7 = hn::Add(s7, hn::LoadU(d, x + i + 7 * lanes));
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  float rest = 0;
  for (; i < count; ++i) rest += x[i];
  *result = hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
  return 4.0 * static_cast<double>(count);
}

double Write(float value, float* HWY_RESTRICT y, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto all = hn::Set(d, value);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(all, d, y + i);
  for (; i < count; ++i) y[i] = value;
  return 4.0 * static_cast<double>(count);
}

double Copy(const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(d, x + i), d, y + i);
  for (; i < count; ++i) y[i] = x[i];
  return 8.0 * static_cast<double>(count);
}

double Axpy(const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::size_t count) {
  const hn::ScalableTag<float> d;
  const auto three = hn::Set(d, 3.0f);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::MulAdd(three, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  for (; i < count; ++i) y[i] += 3 * x[i];
  return 12.0 * static_cast<double>(count);
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::plain_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::plain_loops {

HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(Read);
HWY_EXPORT(Write);
HWY_EXPORT(Copy);
HWY_EXPORT(Axpy);

double multiply_add(std::int64_t rounds, float* result) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAdd)(rounds, result);
}

double read(const float* x, std::size_t count, float* result) {
  return HWY_DYNAMIC_DISPATCH(Read)(x, count, result);
}

double write(float value, float* y, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(Write)(value, y, count);
}

double copy(const float* x, float* y, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(Copy)(x, y, count);
}

double axpy(const float* x, float* y, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(Axpy)(x, y, count);
}

}  // namespace shoal::plain_loops
#endif
