#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shoal/optim/update.h"

namespace shoal::optim {

/// The tensors of one slice, all on one device, contiguous and of one shape.
struct DeviceSlice {
  at::Tensor parameter;  ///< float32: the master where there is a copy
  at::Tensor copy;       ///< of the forward pass, bf16 or f16, rounded to nearest; or undefined
  at::Tensor gradient;   ///< float32, bf16 or f16; read only
  at::Tensor exp_avg, exp_avg_sq;  ///< float32
};

/// AdamW on a device, by LibTorch's operators on lists of tensors: some twelve launches for all
/// slices that share their factors, whatever their number. The formula is that of `adamw_update`;
/// the bits are not, as devices round products and sums in their own order. The tensors' counts of
/// changes stay as they are, so that autograd does not notice.
class DeviceAdamW {
 public:
  void add(const DeviceSlice& slice, const AdamWFactors& factors);
  /// Updates all that was added and is not updated yet: `add` does so too when its temporary
  /// tensors would take much.
  void update();

 private:
  struct Alike {
    AdamWFactors factors;
    std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs;
    std::vector<at::Tensor> copies, copied;  ///< and the parameters from which they are made
  };
  std::vector<Alike> alike_;
  std::int64_t elements_ = 0;  ///< added since the last update
};

/// `sgd_update` on a device. `buffer` is undefined without momentum.
void device_sgd_update(const at::Tensor& parameter, const at::Tensor& gradient,
                       const at::Tensor& buffer, const SgdFactors& factors);

/// Returns the sum of squares of tensors on one device, added up in double there, in the device's
/// own order. The host waits for the device once; 0 where there are none.
double device_sum_of_squares(at::ArrayRef<at::Tensor> tensors);

}  // namespace shoal::optim
