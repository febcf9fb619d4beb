#include "shoal/comm/device_queue.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace shoal::comm {
namespace {

using c10::impl::VirtualGuardImpl;

class EventMark final : public DeviceQueue::Mark {
 public:
  explicit EventMark(const c10::Stream& stream) : event_(stream.device_type()) {
    event_.record(stream);
  }
  bool passed() const override { return event_.query(); }

 private:
  c10::Event event_;
};

class StreamQueue final : public DeviceQueue {
 public:
  explicit StreamQueue(at::Device device)
      : stream_(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true)) {}

  void* native() const override { return stream_.native_handle(); }
  void follow_current() override {
    const at::Device device = stream_.device();
    c10::Event begin(device.type());
    begin.record(VirtualGuardImpl(device.type()).getStream(device));
    begin.block(stream_);
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<EventMark>(stream_); }
  std::unique_ptr<DeviceQueue> another() const override { return device_queue(stream_.device()); }

 private:
  c10::Stream stream_;
};

}  // namespace

std::unique_ptr<DeviceQueue> device_queue(at::Device device) {
  return std::make_unique<StreamQueue>(device);
}

}  // namespace shoal::comm
