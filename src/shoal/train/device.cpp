#include "shoal/train/device.h"

#include <ATen/Context.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "shoal/base/check.h"

namespace shoal::train {
namespace {

Error no_device(const comm::Group& group, std::string what) {
  Error error(ErrorKind::kConfig, "parallelism.device", std::move(what));
  error.at(group.rank(), group.size());
  return error;
}

/// Shoal is linked with what every LibTorch has. The part for CUDA registers itself when loaded.
void load_cuda(const comm::Group& group) {
  // Not at::hasCUDA(), which remembers its first answer.
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) return;
  void* const library = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (library && c10::impl::hasDeviceGuardImpl(at::kCUDA)) return;
  const char* const why = library ? nullptr : ::dlerror();
  throw no_device(group, fmt::format("\"cuda\", and LibTorch's part for CUDA does not load ({})",
                                     why ? why : "libtorch_cuda.so registers no device"))
      .hint(
          "put a PyTorch 2.11 with CUDA and its libraries first in LD_LIBRARY_PATH (torch/lib "
          "and nvidia/*/lib of its Python environment)");
}

}  // namespace

RankDevice device_of_rank(DeviceKind kind, const comm::Group& group) {
  if (kind == DeviceKind::kCpu) return {};
  load_cuda(group);
  const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
  const int count = cuda.deviceCount();
  if (count == 0) throw no_device(group, "\"cuda\", and this host has no GPU that CUDA sees");
  const comm::Group host = group.on_host();
  const int place = host.rank();
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(place % count));
  at::globalContext().lazyInitDevice(at::kCUDA);
  cuda.setDevice(device);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const bool shares = host.size() > count;
  return {device, group.size() > 1 && group.sum(shares ? 1 : 0) == 0};
}

double peak_device_memory(at::Device device) {
  if (device.is_cpu()) return 0;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<double>(
      stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
          .peak);
}

void reset_peak_device_memory(at::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

void synchronize(at::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace shoal::train
