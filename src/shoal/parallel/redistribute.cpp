#include "shoal/parallel/redistribute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"
#include "shoal/parallel/box_view.h"
#include "shoal/parallel/read_in_place.h"

namespace shoal::parallel {
namespace {

using mesh::Box;
using mesh::Move;
using mesh::Placement;

using Sizes = std::vector<std::int64_t>;

/// One rank's tensor: some boxes of the whole tensor, one behind the other along the dimension that
/// is cut. Without a cut it is one box.
struct Part {
  std::vector<Box> boxes;
  std::int64_t dim = 0;
  Sizes shape;  ///< of the rank's tensor

  std::int64_t count() const {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

Part part_of(const Sizes& whole, const Placement& placement, int ranks, int rank) {
  Part part{mesh::boxes_along(whole, placement, ranks, rank), 0, whole};
  if (placement.kind != Placement::Kind::kShard) return part;
  part.dim = mesh::cut_dim(placement, whole.size());
  std::int64_t length = 0;
  for (const Box& box : part.boxes) length += box.end[part.dim] - box.begin[part.dim];
  part.shape[part.dim] = length;
  return part;
}

/// Calls `visit` with each box of a part and the view of it in the rank's tensor.
template <typename Visit>
void for_boxes(const Part& part, const at::Tensor& local, const Visit& visit) {
  std::int64_t offset = 0;
  for (const Box& box : part.boxes) {
    const std::int64_t length = part.shape.empty() ? 1 : box.end[part.dim] - box.begin[part.dim];
    visit(box, part.shape.empty() ? local : local.narrow(part.dim, offset, length));
    offset += length;
  }
}

Box box_of_all(const Sizes& whole) { return {Sizes(whole.size(), 0), whole}; }

/// Copies a rank's part out of the whole tensor.
void take(const at::Tensor& local, const Part& part, const at::Tensor& whole) {
  const Box all = box_of_all(whole.sizes().vec());
  for_boxes(part, local,
            [&](const Box& box, const at::Tensor& view) { view.copy_(view_of(whole, all, box)); });
}

/// Copies a rank's part to its place in the whole tensor.
void put(const at::Tensor& whole, const Part& part, const at::Tensor& local) {
  const Box all = box_of_all(whole.sizes().vec());
  for_boxes(part, local,
            [&](const Box& box, const at::Tensor& view) { view_of(whole, all, box).copy_(view); });
}

/// Returns true when the parts of all ranks are equal and follow each other in memory, so that
/// collectives need no packing.
bool in_order(const Placement& cut, const Sizes& whole, int ranks) {
  const int dim = mesh::cut_dim(cut, whole.size());
  const bool leading =
      std::all_of(whole.begin(), whole.begin() + dim, [](std::int64_t size) { return size == 1; });
  return cut.cut == Placement::Cut::kEven && leading && whole[dim] % ranks == 0;
}

/// The parts of all ranks, and the most elements that one has: collectives want equal ones.
struct Parts {
  std::vector<Part> of;
  std::int64_t most = 0;
};

Parts parts_of(const Sizes& whole, const Placement& placement, int ranks) {
  Parts parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.of.push_back(part_of(whole, placement, ranks, rank));
    parts.most = std::max(parts.most, parts.of.back().count());
  }
  return parts;
}

at::Tensor gather(const at::Tensor& x, const comm::Group& group, const Placement& cut,
                  const Sizes& whole) {
  const at::Tensor result = at::empty(whole, x.options());
  if (in_order(cut, whole, group.size())) {
    group.all_gather(result.view({-1}), x.contiguous().view({-1}));
    return result;
  }
  const Parts parts = parts_of(whole, cut, group.size());
  const at::Tensor own = at::zeros({parts.most}, x.options());
  own.narrow(0, 0, x.numel()).copy_(x.contiguous().view({-1}));
  const at::Tensor all = at::empty({group.size() * parts.most}, x.options());
  group.all_gather(all, own);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Part& part = parts.of[static_cast<std::size_t>(rank)];
    put(result, part, all.narrow(0, rank * parts.most, part.count()).view(part.shape));
  }
  return result;
}

at::Tensor scatter_sum(const at::Tensor& x, const comm::Group& group, const Placement& cut,
                       const Sizes& whole) {
  const Part own = part_of(whole, cut, group.size(), group.rank());
  if (in_order(cut, whole, group.size())) {
    const at::Tensor result = at::empty(own.shape, x.options());
    group.reduce_scatter(result.view({-1}), x.contiguous().view({-1}));
    return result;
  }
  const Parts parts = parts_of(whole, cut, group.size());
  const at::Tensor all = at::zeros({group.size() * parts.most}, x.options());
  for (int rank = 0; rank < group.size(); ++rank) {
    const Part& part = parts.of[static_cast<std::size_t>(rank)];
    take(all.narrow(0, rank * parts.most, part.count()).view(part.shape), part, x);
  }
  const at::Tensor sum = at::empty({parts.most}, x.options());
  group.reduce_scatter(sum, all);
  return sum.narrow(0, 0, own.count()).clone().view(own.shape);
}

/// Copies what two parts have in common from the tensor of one to that of the other.
void copy_common(const Part& to, const at::Tensor& target, const Part& from,
                 const at::Tensor& source) {
  for_boxes(from, source, [&](const Box& given, const at::Tensor& given_view) {
    for_boxes(to, target, [&](const Box& wanted, const at::Tensor& wanted_view) {
      const Box both = mesh::intersection(given, wanted);
      if (both.count() > 0)
        view_of(wanted_view, wanted, both).copy_(view_of(given_view, given, both));
    });
  });
}

/// Calls `visit` with what two parts have in common, in an order that both ranks know, as a view of
/// `local`, the tensor of `mine`. `sending` says whether `mine` is the part that is sent.
template <typename Visit>
void for_common(const Part& mine, const at::Tensor& local, const Part& other, bool sending,
                const Visit& visit) {
  struct Common {
    std::size_t sent;
    std::size_t received;
    at::Tensor view;
  };
  std::vector<Common> list;
  std::size_t i = 0;
  for_boxes(mine, local, [&](const Box& box, const at::Tensor& view) {
    for (std::size_t j = 0; j < other.boxes.size(); ++j) {
      const Box both = mesh::intersection(box, other.boxes[j]);
      if (both.count() > 0)
        list.push_back({sending ? i : j, sending ? j : i, view_of(view, box, both)});
    }
    ++i;
  });
  std::sort(list.begin(), list.end(), [](const Common& a, const Common& b) {
    return std::pair(a.sent, a.received) < std::pair(b.sent, b.received);
  });
  for (const Common& common : list) visit(common.view);
}

/// Every rank packs for each other one what that one will hold of its part, and unpacks into
/// `result` what it receives.
void exchange_copies(const at::Tensor& x, const at::Tensor& result, const comm::Group& group,
                     const Parts& given, const Parts& wanted) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto self = static_cast<std::size_t>(group.rank());
  const Part& from = given.of[self];
  const Part& to = wanted.of[self];
  const at::Tensor sent = at::empty({x.numel()}, x.options());
  const at::Tensor received = at::empty({result.numel()}, x.options());
  std::vector<std::size_t> send_counts(size);
  std::vector<std::size_t> receive_counts(size);
  std::int64_t offset = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::int64_t begin = offset;
    for_common(from, x, wanted.of[rank], true, [&](const at::Tensor& view) {
      sent.narrow(0, offset, view.numel()).view(view.sizes()).copy_(view);
      offset += view.numel();
    });
    send_counts[rank] = static_cast<std::size_t>(offset - begin);
    for_common(to, result, given.of[rank], false, [&](const at::Tensor& view) {
      receive_counts[rank] += static_cast<std::size_t>(view.numel());
    });
  }
  group.all_to_all(received, sent, receive_counts, send_counts);
  offset = 0;
  for (const Part& part : given.of) {
    for_common(to, result, part, false, [&](const at::Tensor& view) {
      view.copy_(received.narrow(0, offset, view.numel()).view(view.sizes()));
      offset += view.numel();
    });
  }
}

/// Every rank gets from each other one what it will hold of that one's part: by one copy from where
/// it lies, or by messages.
at::Tensor exchange(const at::Tensor& x, const comm::Group& group, const Move& move,
                    const Sizes& whole) {
  const auto self = static_cast<std::size_t>(group.rank());
  const Parts given = parts_of(whole, move.from, group.size());
  const Parts wanted = parts_of(whole, move.to, group.size());
  const at::Tensor result = at::empty(wanted.of[self].shape, x.options());
  const bool read = read_in_place(group, x, given.of[self].dim, [&](const comm::Lent& lent) {
    for (int rank = 0; rank < group.size(); ++rank) {
      copy_common(wanted.of[self], result, given.of[static_cast<std::size_t>(rank)],
                  lent.part(rank));
    }
  });
  if (!read) exchange_copies(x, result, group, given, wanted);
  return result;
}

at::Tensor carry_out(const at::Tensor& x, const comm::Group& group, const Move& move,
                     const Sizes& whole) {
  const Part own = part_of(whole, move.from, group.size(), group.rank());
  SHOAL_USER_CHECK(x.sizes().equals(own.shape), "redistribute",
                   "{} of a tensor of {} is {} on rank {} of {}, not {}", move.from.text(), whole,
                   own.shape, group.rank(), group.size(), x.sizes().vec());
  switch (move.kind) {
    case Move::Kind::kNone:
      return x;
    case Move::Kind::kSlice: {
      const Part part = part_of(whole, move.to, group.size(), group.rank());
      const at::Tensor result = at::empty(part.shape, x.options());
      take(result, part, x);
      return result;
    }
    case Move::Kind::kPad: {
      const at::Tensor result = at::zeros(whole, x.options());
      put(result, own, x);
      return result;
    }
    case Move::Kind::kGather:
      return gather(x, group, move.from, whole);
    case Move::Kind::kScatterSum:
      return scatter_sum(x, group, move.to, whole);
    case Move::Kind::kReduce: {
      // A copy: autograd may need what came in, and the sum is formed in place.
      const at::Tensor result = x.clone(at::MemoryFormat::Contiguous);
      group.all_reduce(result);
      return result;
    }
    case Move::Kind::kExchange:
      return exchange(x, group, move, whole);
  }
  return x;
}

}  // namespace

at::Tensor redistribute(const at::Tensor& x, const comm::Group& group, const Placement& from,
                        const Placement& to, at::IntArrayRef whole, const at::Tensor& known) {
  const Move move = mesh::move_between(from, to);
  if (move.kind == Move::Kind::kNone) return x;
  const Move back = mesh::backward_of(move);
  const Sizes shape = whole.vec();
  return ops::differentiable(
      "redistribute", {x},
      [&](const ops::Wanted&) {
        // detach() makes a tensor of its own over the same memory, which this call's node can own.
        const at::Tensor y = known.defined() ? known.detach() : carry_out(x, group, move, shape);
        const ops::Backward backward = [group, back, shape, of = y.sizes().vec(),
                                        options = y.options()](const ops::Tensors&,
                                                               const ops::Tensors& dy) {
          const at::Tensor given = dy[0].defined() ? dy[0] : at::zeros(of, options);
          return ops::Tensors{carry_out(given, group, back, shape)};
        };
        return ops::Recorded{{y}, {}, backward};
      },
      ops::Runs::kAlways)[0];
}

}  // namespace shoal::parallel
