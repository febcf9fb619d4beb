#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cstdio>

#include "shoal/comm/world.h"

int main() {
  // Runs three ranks as threads. Where each rank is a process, call shoal::comm::connect in each of
  // them: the bits are the same.
  shoal::comm::run_on_threads({.size = 3}, [](const shoal::comm::Group& group) {
    const at::Tensor gradient = at::full({4}, group.rank() + 1.0F);
    group.all_reduce(gradient);  // sums in place, over memory that all ranks see
    if (group.rank() == 0) std::printf("sum %.0f\n", gradient.const_data_ptr<float>()[0]);
  });
}
