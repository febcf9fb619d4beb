#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "shoal/base/error.h"
#include "shoal/collective/operation.h"
#include "shoal/comm/shared_buffer.h"
#include "shoal/comm/work.h"

namespace shoal::comm {

/// One collective on tensors. `operation` is complete but for buffers of engines that take the
/// tensors themselves (c10d, NCCL). All tensors are contiguous; the lists pair up, `inputs[i]` with
/// `outputs[i]`. Valid during Engine::start only.
struct Call {
  const collective::Operation& operation;
  at::ArrayRef<at::Tensor> inputs;
  at::ArrayRef<at::Tensor> outputs;
  bool blocking = false;  ///< complete before returning; the Work returned is then empty
};

/// What a Group stands on: Shoal's own communicator, ranks as threads, MPI, any c10d process group,
/// or a fake. Threads: as collective::Communicator.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool supports(collective::Kind kind, ElementType type,
                        collective::Reduction reduction) const = 0;
  virtual Work start(const Call& call) = 0;
  virtual void poll() {}
  virtual std::shared_ptr<Engine> split(int color, int key) = 0;
  virtual void abort(const Error& cause) = 0;

  /// Ranks of the same number share memory.
  virtual int host() const { return rank(); }
  /// Null where ranks share no memory.
  virtual std::shared_ptr<SharedBuffer> shared_buffer(std::size_t bytes) { return nullptr; }
  /// True when every rank lies on this host and reads this tensor in place, so that reducing many
  /// small tensors costs no copy.
  virtual bool visible_to_peers(const at::Tensor& tensor) const { return false; }
};

}  // namespace shoal::comm
