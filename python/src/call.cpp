#include "python/src/call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shoal/base/check.h"
#include "shoal/comm/group.h"

namespace shoal::python {
namespace {

using collective::Kind;

bool computes(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

collective::Reduction reduction_of(c10d::ReduceOp::RedOpType op) {
  using collective::Reduction;
  switch (op) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      return Reduction::kBitXor;
    case c10d::ReduceOp::PREMUL_SUM:
      return Reduction::kPremulSum;
    default:
      throw Error(ErrorKind::kUsage, "group", "an unknown reduction");
  }
}

/// True when the tensors lie one behind the other, without a gap, and their memory holds their
/// values as they are: a lazy conjugate or negative has them only when it is copied.
bool in_a_row(const std::vector<at::Tensor>& tensors) {
  const auto* at = static_cast<const std::byte*>(tensors.front().const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.const_data_ptr() != at ||
        !tensor.is_alias_of(tensors.front()) || tensor.is_conj() || tensor.is_neg())
      return false;
    at += tensor.nbytes();
  }
  return true;
}

std::int64_t elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

}  // namespace

const at::Tensor& Call::keep(const at::Tensor& tensor) {
  // Operations know memory by its address only: the tensor must live until every rank has finished
  // with it.
  kept_tensors_.tensors.push_back(tensor);
  return kept_tensors_.tensors.back();
}

void Call::check(const at::Tensor& tensor) const {
  SHOAL_USER_CHECK(
      tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided, title_,
      "the shoal backend carries dense CPU tensors, not {}",
      tensor.defined() ? c10::str(tensor.layout(), " on ", tensor.device()) : "an undefined one");
}

at::Tensor Call::read(const at::Tensor& tensor) {
  check(tensor);
  const at::NoGradGuard no_grad;
  return keep(tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg().contiguous()
                                                  : tensor.contiguous());
}

at::Tensor Call::write(const at::Tensor& tensor) {
  check(tensor);
  // The result goes straight into the caller's memory where its layout allows; otherwise into
  // memory that is copied to the tensor at completion.
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return keep(tensor);
  const at::NoGradGuard no_grad;
  auto memory = at::empty(tensor.sizes(), tensor.options());
  kept_tensors_.copies.emplace_back(tensor, memory);
  return keep(memory);
}

at::Tensor Call::update(const at::Tensor& tensor) {
  const auto memory = write(tensor);
  const at::NoGradGuard no_grad;
  if (!memory.is_same(tensor)) memory.copy_(tensor);
  return memory;
}

at::Tensor Call::read_all(const std::vector<at::Tensor>& tensors) {
  SHOAL_USER_CHECK(!tensors.empty(), title_, "a list of no tensors");
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    SHOAL_USER_CHECK(tensor.scalar_type() == tensors.front().scalar_type(), title_,
                     "the tensors of a list have one type, not {} and {}",
                     c10::toString(tensors.front().scalar_type()),
                     c10::toString(tensor.scalar_type()));
  }
  // PyTorch often passes views of one tensor. Their storage is kept by any of them.
  if (in_a_row(tensors)) return keep(tensors.front());
  const at::NoGradGuard no_grad;
  auto memory = at::empty({elements(tensors)}, tensors.front().options());
  std::int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    memory.narrow(0, at, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    at += tensor.numel();
  }
  return keep(memory);
}

at::Tensor Call::write_all(const std::vector<at::Tensor>& tensors) {
  SHOAL_USER_CHECK(!tensors.empty(), title_, "a list of no tensors");
  for (const at::Tensor& tensor : tensors) check(tensor);
  if (in_a_row(tensors)) return keep(tensors.front());
  const at::NoGradGuard no_grad;
  auto memory = at::empty({elements(tensors)}, tensors.front().options());
  std::int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    kept_tensors_.copies.emplace_back(tensor,
                                      memory.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
  return keep(memory);
}

collective::Operation& Call::add(Kind kind, const at::Tensor& input, const at::Tensor& output,
                                 std::size_t count) {
  const at::Tensor& typed = input.defined() ? input : output;
  collective::Operation& operation = operations_.emplace_back();
  operation.kind = kind;
  operation.timeout = timeout_;
  if (!typed.defined()) return operation;
  SHOAL_USER_CHECK(
      !input.defined() || !output.defined() || input.scalar_type() == output.scalar_type(), title_,
      "input is {}, output is {}", c10::toString(input.scalar_type()),
      c10::toString(output.scalar_type()));
  try {
    operation.type = comm::element_type(typed.scalar_type());
  } catch (const Error&) {
    // Shoal has no such element type. Data that is only moved travels as bytes.
    if (computes(kind)) throw;
    count *= typed.element_size();
  }
  operation.buffer = {input.defined() ? input.const_data_ptr() : nullptr,
                      output.defined() ? output.mutable_data_ptr() : nullptr, count};
  return operation;
}

void Call::reduce_by(const c10d::ReduceOp& reduction) {
  collective::Operation& operation = operations_.back();
  operation.reduction = reduction_of(reduction);
  if (reduction.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  const auto* factor =
      dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(reduction.supplement_.get());
  SHOAL_USER_CHECK(factor, title_, "a pre-multiplied sum brings a factor");
  operation.scale = factor->tensor_factor.defined() ? factor->tensor_factor.item().toDouble()
                                                    : factor->double_factor;
}

void Call::exchange(const at::Tensor& input, const at::Tensor& output,
                    std::vector<std::size_t> send_counts, std::vector<std::size_t> receive_counts) {
  collective::Operation& operation = add(Kind::kAllToAll, input, output, 0);
  // `add` left the type of bytes: the counts become counts of bytes.
  if (operation.type == collective::Operation{}.type)
    for (auto* counts : {&send_counts, &receive_counts})
      for (auto& count : *counts) count *= input.element_size();
  // A deque does not move its elements when it grows: the spans of earlier operations stay valid.
  operation.send_counts = counts_.emplace_back(std::move(send_counts));
  operation.receive_counts = counts_.emplace_back(std::move(receive_counts));
}

void Call::add_buffer(const at::Tensor& tensor) {
  collective::Operation& operation = operations_.back();
  if (operation.more.empty()) more_.emplace_back();
  more_.back().push_back({tensor.const_data_ptr(), tensor.mutable_data_ptr(),
                          static_cast<std::size_t>(tensor.numel())});
  // Assigned again each time, because the vector may have moved.
  operation.more = more_.back();
}

}  // namespace shoal::python
