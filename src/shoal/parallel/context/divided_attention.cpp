#include "shoal/parallel/context/divided_attention.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "shoal/base/check.h"

namespace shoal::parallel {

DividedAttention::DividedAttention(const nn::AttentionCore& original, comm::Group ranks,
                                   mesh::Placement::Cut cut)
    : AttentionCore(original.shape(), original.projection()), ranks_(std::move(ranks)), cut_(cut) {}

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
