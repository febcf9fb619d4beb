#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/codec/error_feedback.h"
#include "shoal/collective/operation.h"
#include "shoal/comm/engine.h"
#include "shoal/comm/lent.h"
#include "shoal/comm/shared_buffer.h"
#include "shoal/comm/work.h"

namespace shoal::comm {

using collective::Kind;
using collective::Reduction;

/// Holds the options of one call.
struct Options {
  Reduction reduction = Reduction::kSum;
  bool async = false;  ///< the call returns at once; its Work tells when it is complete
  int priority = 0;    ///< a higher priority overtakes a lower one; MPI ignores it
  Duration timeout{};  ///< zero: the group's default
  double scale = 1;    ///< the factor of Reduction::kPremulSum
  /// In collectives, ranks compare it with the rest of the call, so that two calls of the same
  /// shape are not mistaken for each other.
  std::uint32_t label = 0;
  /// In all_gather: `output` lies in a `shared_buffer` of the group that `on_host` returns. It is
  /// written once for the whole host, after all ranks of the host have called. Every host must hold
  /// the same number of consecutive ranks, and more than one.
  bool shared_output = false;
  /// In all_reduce of one tensor of fp32 by sum, over Shoal's own transports: how its values
  /// travel. Every value is encoded twice, also in a group of one. All ranks pass an equal one,
  /// with another key in each call (collective::CodedExchange).
  collective::Coding coding;
  /// With a codec: residuals, which are read and written until the call is complete
  /// (collective::ErrorFeedback). Null: none.
  const collective::CodedFeedback* feedback = nullptr;
};

/// A set of ranks that act together on tensors. Copies of a Group name the same group. In a group
/// of one rank, which a default-constructed Group is, every collective is a local copy or nothing
/// (a pre-multiplied sum multiplies).
///
/// The operations are those of torch.distributed, on one flat tensor a rank: all_gather corresponds
/// to all_gather_into_tensor, reduce_scatter to reduce_scatter_tensor, and all_to_all to
/// all_to_all_single. Every rank calls the same operations in the same order. Tensors may be
/// non-contiguous (they are then copied in and out; a call whose result is copied out is complete
/// when it returns).
///
/// Errors are shoal::Error: usage for shapes that do not fit, mismatch when ranks disagree, timeout
/// and peer_lost. After `abort` a call throws the Error that a rank passed to it, of any kind.
/// Threads: one thread at a time may use a group, but any thread may call `abort`.
class Group {
 public:
  Group() = default;
  /// Makes the group of the ranks of `communicator`; null: a group of one. `keep_alive` is an
  /// object that the communicator depends on: it lives as long as the group and its splits.
  explicit Group(std::shared_ptr<collective::Communicator> communicator,
                 std::shared_ptr<void> keep_alive = nullptr);

  int rank() const { return engine_ ? engine_->communicator()->rank() : 0; }
  int size() const { return engine_ ? engine_->communicator()->size() : 1; }
  bool supports(Kind kind, at::ScalarType type, Reduction reduction = Reduction::kSum) const;

  Work all_reduce(const at::Tensor& tensor, const Options& options = {}) const;
  /// Reduces many tensors of one type in one call.
  Work all_reduce(at::ArrayRef<at::Tensor> tensors, const Options& options = {}) const;
  /// `output` [size x input.numel()] receives the inputs in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  const Options& options = {}) const;
  /// Does several calls in one: `outputs[i]` comes from `inputs[i]`. All tensors have one type.
  Work all_gather(at::ArrayRef<at::Tensor> outputs, at::ArrayRef<at::Tensor> inputs,
                  const Options& options = {}) const;
  /// `input` has [size x output.numel()] elements; rank r receives the reduction of part r.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      const Options& options = {}) const;
  Work reduce_scatter(at::ArrayRef<at::Tensor> outputs, at::ArrayRef<at::Tensor> inputs,
                      const Options& options = {}) const;
  /// Part r of `input` goes to rank r. Counts are in elements, one for each rank; where they are
  /// empty, the parts are equal.
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

  /// Returns the sum of the ranks' values, on every rank. Blocks.
  double sum(double value) const;
  /// Returns the bytes that this rank's calls on this group, and on those split from it, had to
  /// send so far, by the algorithms that send least, whatever carried them: 2 (p - 1) / p of an
  /// all-reduce, (p - 1) parts of a gather or a reduce-scatter. Formulas of techniques are tested
  /// against it.
  double bytes_sent() const { return engine_ ? engine_->bytes_sent() : 0; }

  /// Returns the group of the ranks that passed the same `color`, ordered by `key` and then by rank
  /// here, as MPI_Comm_split does. A rank with a negative color gets a group of one. Traces show
  /// the group by `name`; empty: by this group's. Collective.
  Group split(int color, int key, std::string name = {}) const;
  /// Returns the group of the ranks that share memory with this one, in their order here.
  /// Collective.
  Group on_host() const;
  void abort(const Error& cause) const;
  void poll() const;
  /// Throws what has ended the group, if anything has, without waiting.
  void check() const;

  /// Returns memory that exists once for all ranks of this group, which must lie on one host (use
  /// `on_host()`); null when they share no memory. A group of one gets plain memory. Collective.
  std::shared_ptr<SharedBuffer> shared_buffer(std::size_t bytes) const;
  /// Lends `own` to the other ranks, and returns what all have lent, each its part: read in place
  /// where the ranks share memory and every part lies in memory that its peers find, otherwise (and
  /// where 64 earlier loans have not been given back) copied by an all-gather. The ranks agree on
  /// which. Parts are of one type and shape, but for the size of dimension `dim`, which is each
  /// rank's own; a tensor that is not contiguous is copied first. Blocks until all ranks have
  /// called it. Throws Error(mismatch) for shapes that do not fit together. Collective.
  Lent lend(const at::Tensor& own, std::int64_t dim = 0) const;
  /// As `lend`, but nullopt, on every rank, where it would copy: for those who know a better way.
  std::optional<Lent> lend_in_place(const at::Tensor& own, std::int64_t dim = 0) const;
  /// Returns true when every rank of the group lies on this host and can read this tensor in place,
  /// so that reducing many small tensors costs no copy.
  bool visible_to_peers(const at::Tensor& tensor) const;
  /// Returns a group of the same ranks over the communicator that `wrap` makes of this group's own,
  /// which both then use; a group of one stays as it is. Collective where `wrap` is.
  Group over(const std::function<std::shared_ptr<collective::Communicator>(
                 std::shared_ptr<collective::Communicator>)>& wrap) const;
  /// Returns the communicator that executes the group's operations; null in a default-constructed
  /// group.
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
