#include "shoal/parallel/context/divided_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>

#include "shoal/base/check.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace shoal::parallel {

std::vector<ops::TokenPlaces> places_of_ranks(const nn::Context& context, const comm::Group& ranks,
                                              mesh::Placement::Cut cut) {
  const nn::Sequence& sequence = context.sequence;
  std::vector<ops::TokenPlaces> places;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor columns = columns_of(sequence.columns, cut, ranks.size(), rank);
    at::Tensor documents;
    if (sequence.documents.defined()) documents = sequence.documents.index_select(1, columns);
    places.push_back({columns.size(0), columns, documents});
  }
  const auto own = static_cast<std::size_t>(ranks.rank());
  SHOAL_USER_CHECK(context.positions.defined() &&
                       context.positions.sizes() == places[own].positions.sizes() &&
                       at::equal(context.positions, places[own].positions),
                   "context parallel",
                   "rank {} of {}: the positions are not its columns of {}: make inputs and "
                   "context by cut_sequence",
                   ranks.rank(), ranks.size(), sequence.columns);
  return places;
}

DividedAttention::DividedAttention(const nn::AttentionCore& original, comm::Group ranks,
                                   mesh::Placement::Cut cut)
    : AttentionCore(original.shape()), ranks_(std::move(ranks)), cut_(cut) {}

at::Tensor DividedAttention::forward(const at::Tensor& x, const nn::Context& context) {
  const bool divided = context.sequence.divided();
  // Gradients of what every rank computes alike would be counted once a rank.
  SHOAL_USER_CHECK(divided || !c10::GradMode::is_enabled(), "context parallel",
                   "the sequence must be divided among the ranks where gradients are recorded: "
                   "make inputs and context by cut_sequence");
  SHOAL_USER_CHECK(!divided || context.cache == nullptr, "context parallel",
                   "a key-value cache takes a whole sequence");
  return divided ? attend(x, context) : AttentionCore::forward(x, context);
}

}  // namespace shoal::parallel
