#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "python/src/options.h"

namespace shoal::python {

class Call;

/// The c10d backend "shoal": CPU tensors, ranks on any hosts.
///
/// Calls with asyncOp = false are complete when they return. Tensors that are not contiguous are
/// copied in and out. Errors are shoal::Error, which Python sees as RuntimeError. Threads: any.
class ShoalBackend final : public c10d::Backend {
 public:
  /// `members` are the group's ranks in the world of the first rendezvous. `met` is the channel of
  /// that rendezvous; when it is null, these ranks have their first rendezvous now, with `options`.
  ShoalBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
               std::chrono::milliseconds timeout, std::vector<int> members,
               std::shared_ptr<Channel> met, const ShoalOptions& options = ShoalOptions());
  /// Makes the group of all ranks of a rendezvous, over its first channel.
  ShoalBackend(int rank, int size, std::chrono::milliseconds timeout,
               std::shared_ptr<Channel> channel);
  ~ShoalBackend() override;

  using Works = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const override { return "shoal"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsShrinking() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override { return channel_->error; }

  /// Returns true: memory that the other ranks read in place is that of the arena, which is
  /// LibTorch's CPU allocator.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  /// Calls `hook` for every operation of this group that ends, with success or not. A group has one
  /// hook.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  /// Every work knows its duration without being asked to.
  void enableCollectivesTiming() override {}

  Works broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Works allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// Sums only. The operation is complete when the call returns, asynchronous or not, because ranks
  /// first exchange how many elements they have.
  Works allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Works allreduce_coalesced(Tensors& tensors,
                            const c10d::AllreduceCoalescedOptions& options) override;
  Works reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Works allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                  const c10d::AllgatherOptions& options) override;
  Works _allgather_base(at::Tensor& output, at::Tensor& input,
                        const c10d::AllgatherOptions& options) override;
  Works allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions& options) override;
  Works allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) override;
  Works gather(std::vector<Tensors>& outputs, Tensors& inputs,
               const c10d::GatherOptions& options) override;
  /// Gathers into one tensor of the root. PyTorch 2.11 knows no such function and never calls it.
  virtual Works gather_single(at::Tensor& output, at::Tensor& input,
                              const c10d::GatherOptions& options);
  Works scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                const c10d::ScatterOptions& options) override;
  Works reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ReduceScatterOptions& options) override;
  Works _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                             const c10d::ReduceScatterOptions& options) override;
  Works reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                        const c10d::ReduceScatterOptions& options) override;
  Works alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                      std::vector<int64_t>& input_splits,
                      const c10d::AllToAllOptions& options) override;
  Works alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Works send(Tensors& tensors, int destination, int tag) override;
  Works recv(Tensors& tensors, int source, int tag) override;
  Works recvAnysource(Tensors& tensors, int tag) override;
  Works barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void startCoalescing() override;
  Works endCoalescing() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  /// Makes a group of `size` ranks that may come from different jobs; they have a new rendezvous
  /// through `store`.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options,
                                          const int& rank, const int& size) override;
  /// The remaining ranks have a new rendezvous, also after a failure; those excluded take no part.
  /// Ranks of several hosts need the store of the first rendezvous. Flag 1 aborts what is in
  /// flight.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int shrink_flags = 0,
      const c10::intrusive_ptr<Options>& options = nullptr) override;
  void abort() override;
  void shutdown() override;

  const std::shared_ptr<Channel>& channel() const { return channel_; }
  const std::vector<int>& members() const { return members_; }
  /// Describes the last operations of every rank, as far as they have come.
  std::string report() const;

 private:
  Works run(Call&& call);

  std::vector<int> members_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Channel> channel_;
  int shrinks_ = 0;
  bool coalescing_ = false;
  std::vector<Works> coalesced_;
};

}  // namespace shoal::python
