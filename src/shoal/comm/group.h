#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shoal/collective/operation.h"
#include "shoal/comm/engine.h"
#include "shoal/comm/shared_buffer.h"
#include "shoal/comm/work.h"

namespace shoal::comm {

using collective::Kind;
using collective::Reduction;

/// Options of one call.
struct Options {
  Reduction reduction = Reduction::kSum;
  bool async = false;  ///< return at once; complete when the Work says so
  int priority = 0;    ///< higher overtakes lower; over MPI it does nothing
  Duration timeout{};  ///< zero: the group's default
  double scale = 1;    ///< the factor of Reduction::kPremulSum
  /// Collectives: ranks compare it with the rest of the call, so that two calls of the same shape
  /// are not mistaken for each other.
  std::uint32_t label = 0;
  /// all_gather: `output` is memory of a `shared_buffer` of `on_host`, which is written once for
  /// the whole host, after all its ranks have called. Every host must hold the same number of
  /// consecutive ranks, and more than one.
  bool shared_output = false;
};

/// A set of ranks that act together on tensors. Copies of a Group name the same group. In a group
/// of one rank, which a default-constructed Group is, every collective is a local copy or nothing
/// (a pre-multiplied sum multiplies).
///
/// Names, shapes and meaning are those of torch.distributed. Every rank calls the same operations
/// in the same order. Tensors may be non-contiguous (they are then copied in and out; a call whose
/// result is copied out is complete when it returns). Errors are shoal::Error: usage for shapes
/// that do not fit, mismatch when ranks disagree, timeout, peer_lost, aborted. Threads: one at a
/// time per group, but `abort` from any.
class Group {
 public:
  Group() = default;
  /// The ranks of `communicator`; null: a group of one. `keep_alive` lives as long as the group and
  /// its splits: something that the communicator depends on.
  explicit Group(std::shared_ptr<collective::Communicator> communicator,
                 std::shared_ptr<void> keep_alive = nullptr);

  int rank() const { return engine_ ? engine_->communicator()->rank() : 0; }
  int size() const { return engine_ ? engine_->communicator()->size() : 1; }
  bool supports(Kind kind, at::ScalarType type, Reduction reduction = Reduction::kSum) const;

  Work all_reduce(const at::Tensor& tensor, const Options& options = {}) const;
  /// Many tensors of one type in one call.
  Work all_reduce(at::ArrayRef<at::Tensor> tensors, const Options& options = {}) const;
  /// `output` [size x input.numel()] in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  const Options& options = {}) const;
  /// Several calls in one: `outputs[i]` comes from `inputs[i]`. All tensors have one type.
  Work all_gather(at::ArrayRef<at::Tensor> outputs, at::ArrayRef<at::Tensor> inputs,
                  const Options& options = {}) const;
  /// `input` [size x output.numel()]; rank r gets the reduction of part r.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      const Options& options = {}) const;
  Work reduce_scatter(at::ArrayRef<at::Tensor> outputs, at::ArrayRef<at::Tensor> inputs,
                      const Options& options = {}) const;
  /// Part r of `input` goes to rank r. Empty counts: equal parts. Counts are elements.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  std::vector<std::size_t> receive_counts = {},
                  std::vector<std::size_t> send_counts = {}, const Options& options = {}) const;
  Work broadcast(const at::Tensor& tensor, int root, const Options& options = {}) const;
  Work broadcast(at::ArrayRef<at::Tensor> tensors, int root, const Options& options = {}) const;
  Work reduce(const at::Tensor& tensor, int root, const Options& options = {}) const;
  Work gather(const at::Tensor& output, const at::Tensor& input, int root,
              const Options& options = {}) const;
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root,
               const Options& options = {}) const;
  Work send(const at::Tensor& tensor, int destination, std::uint32_t tag = 0,
            const Options& options = {}) const;
  Work recv(const at::Tensor& tensor, int source, std::uint32_t tag = 0,
            const Options& options = {}) const;
  Work barrier(const Options& options = {}) const;

  /// The sum of one number a rank, on every rank. Blocks.
  double sum(double value) const;

  /// The ranks that gave the same `color`, ordered by `key`, then by rank here. Collective. A
  /// negative color joins nothing and gets a group of one.
  Group split(int color, int key) const;
  /// The ranks that share memory with this one, in their order here. Collective.
  Group on_host() const;
  void abort(const Error& cause) const;
  void poll() const;

  /// One copy per host, mapped by all; null where the ranks share no memory. Collective. A group of
  /// one gets plain memory.
  std::shared_ptr<SharedBuffer> shared_buffer(std::size_t bytes) const;
  /// True when every rank lies on this host and reads this tensor in place, so that reducing many
  /// small tensors costs no copy.
  bool visible_to_peers(const at::Tensor& tensor) const;
  /// The communicator that carries out the group's operations; null in a default-constructed group.
  const collective::Communicator* communicator() const {
    return engine_ ? engine_->communicator().get() : nullptr;
  }

 private:
  std::shared_ptr<Engine> engine_;
};

/// Converts LibTorch's type to Shoal's. Throws Error(usage) for a type that no collective carries.
ElementType element_type(at::ScalarType type);
at::ScalarType scalar_type(ElementType type);

}  // namespace shoal::comm
