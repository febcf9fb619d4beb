#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace shoal::comm {

/// A queue of work on a device, beside the one on which this thread's operators compute.
class DeviceQueue {
 public:
  /// A place in the queue.
  class Mark {
   public:
    virtual ~Mark() = default;
    /// Returns true when all that came before it is done. Does not wait.
    virtual bool passed() const = 0;
  };

  virtual ~DeviceQueue() = default;
  /// Returns the stream as the device's own libraries name it (cudaStream_t).
  virtual void* native() const = 0;
  /// Lets what comes now begin after all that this thread's current queue was given.
  virtual void follow_current() = 0;
  virtual std::unique_ptr<Mark> mark() = 0;
  /// Returns another queue of the same device.
  virtual std::unique_ptr<DeviceQueue> another() const = 0;
};

/// Returns a queue of high priority on `device`: what other ranks wait for goes before what only
/// this one computes.
std::unique_ptr<DeviceQueue> device_queue(at::Device device);

}  // namespace shoal::comm
