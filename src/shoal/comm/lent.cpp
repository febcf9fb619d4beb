#include "shoal/comm/lent.h"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::comm {

struct Lent::State {
  /// The communicator lives as long as somebody reads: a rank that has left is taken to read
  /// nothing.
  std::shared_ptr<Engine> engine;
  std::shared_ptr<collective::Loan> loan;  ///< null where `parts` are given
  at::TensorOptions options;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<at::Tensor> parts;
  bool copied = false;

  ~State() {
    if (loan) loan->give_back();
  }
};

Lent::Lent(std::shared_ptr<Engine> engine, std::shared_ptr<collective::Loan> loan,
           const at::Tensor& own, std::int64_t dim) {
  auto state = std::make_shared<State>();
  state->options = at::TensorOptions().dtype(own.dtype());
  // What one index of the dimension takes, which is the same on all ranks.
  std::size_t slice_bytes = own.element_size();
  for (std::int64_t d = 0; d < own.dim(); ++d)
    if (d != dim) slice_bytes *= static_cast<std::size_t>(own.size(d));
  const int ranks = engine->communicator()->size();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t bytes = loan->part(rank).size();
    SHOAL_CHECK(slice_bytes == 0 ? bytes == 0 : bytes % slice_bytes == 0,
                "rank {} has lent {} bytes, and an index of dimension {} takes {}", rank, bytes,
                dim, slice_bytes);
    std::vector<std::int64_t>& shape = state->shapes.emplace_back(own.sizes().vec());
    if (slice_bytes > 0)
      shape[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(bytes / slice_bytes);
  }
  state->engine = std::move(engine);
  state->loan = std::move(loan);
  state_ = std::move(state);
}

Lent::Lent(std::vector<at::Tensor> parts, bool copied) {
  auto state = std::make_shared<State>();
  state->parts = std::move(parts);
  state->copied = copied;
  state_ = std::move(state);
}

bool Lent::in_place() const { return !state_->copied; }

at::Tensor Lent::part(int rank) const {
  if (!state_->loan) return state_->parts.at(static_cast<std::size_t>(rank));
  const std::span<const std::byte> bytes = state_->loan->part(rank);
  // The deleter holds the loan: views of a part may outlive the Lent. LibTorch has no tensors that
  // cannot be written.
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), state_->shapes.at(static_cast<std::size_t>(rank)),
      [state = state_](void*) {}, state_->options);
}

}  // namespace shoal::comm
