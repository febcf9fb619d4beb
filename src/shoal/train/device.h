#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/comm/group.h"
#include "shoal/train/config/choices.h"

namespace shoal::train {

/// The device of a rank.
struct RankDevice {
  at::Device device = at::kCPU;
  bool own = false;  ///< a GPU, and on no host do two ranks share one: NCCL can be used
};

/// Chooses where this rank computes. cuda: the GPU with the rank's number on its host, modulo the
/// GPUs there; it becomes this thread's current one, and this thread's backward passes run in it,
/// as on CPU: hooks, recorders and ranks that are threads rely on that. Throws Error(config) where
/// LibTorch has no CUDA or the host no GPU. Collective.
RankDevice device_of_rank(DeviceKind kind, const comm::Group& group);

/// Returns the bytes that this process's tensors took on `device` at their worst moment; 0 on CPU.
double peak_device_memory(at::Device device);

/// Lets peak_device_memory begin anew with what is there now.
void reset_peak_device_memory(at::Device device);

/// Blocks until all that was given to `device` is done; nothing on CPU.
void synchronize(at::Device device);

}  // namespace shoal::train
