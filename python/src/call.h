#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "shoal/collective/operation.h"

namespace shoal::python {

/// Translates one call of c10d into operations: turns tensors into buffers, and records which
/// tensors must live until the call is complete, and which results are copied back then.
class Call {
 public:
  Call(c10d::OpType type, const char* title, bool async, std::chrono::milliseconds timeout)
      : type_(type), title_(title), async_(async), timeout_(timeout) {}

  /// Returns a contiguous tensor with the same values: itself, or a copy. Throws Error(usage)
  /// unless it is a dense CPU tensor.
  at::Tensor read(const at::Tensor& tensor);
  /// Returns memory of the tensor's size for a result that will be in the tensor when the call is
  /// complete.
  at::Tensor write(const at::Tensor& tensor);
  at::Tensor update(const at::Tensor& tensor);
  /// Returns the values of several tensors one behind the other, without a copy when they lie so.
  at::Tensor read_all(const std::vector<at::Tensor>& tensors);
  at::Tensor write_all(const std::vector<at::Tensor>& tensors);

  /// Appends an operation on tensors that `read`, `write` or `update` returned; either may be
  /// undefined. Types that no operation knows travel as bytes where nothing is computed.
  collective::Operation& add(collective::Kind kind, const at::Tensor& input,
                             const at::Tensor& output, std::size_t count);
  void reduce_by(const c10d::ReduceOp& reduction);
  /// Appends an all_to_all with counts of elements for each rank.
  void exchange(const at::Tensor& input, const at::Tensor& output,
                std::vector<std::size_t> send_counts, std::vector<std::size_t> receive_counts);
  /// Appends a buffer to the last operation.
  void add_buffer(const at::Tensor& tensor);
  void result(const std::vector<at::Tensor>& tensors) {
    kept_tensors_.outputs.insert(kept_tensors_.outputs.end(), tensors.begin(), tensors.end());
  }

 private:
  friend class ShoalBackend;
  const at::Tensor& keep(const at::Tensor& tensor);
  void check(const at::Tensor& tensor) const;

  c10d::OpType type_;
  const char* title_;
  bool async_;
  std::chrono::milliseconds timeout_;
  KeptTensors kept_tensors_;
  std::vector<collective::Operation> operations_;
  std::deque<std::vector<std::size_t>> counts_;  // operations point to these
  std::deque<std::vector<collective::Buffer>> more_;
};

}  // namespace shoal::python
