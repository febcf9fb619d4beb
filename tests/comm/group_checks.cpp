#include "tests/comm/group_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/collective/fold/fold.h"

namespace shoal::comm {
namespace {

constexpr at::ScalarType kTypes[] = {
    at::kBool,     at::kByte,   at::kChar,   at::kUInt16,        at::kShort,        at::kUInt32,
    at::kInt,      at::kUInt64, at::kLong,   at::kFloat8_e4m3fn, at::kFloat8_e5m2,  at::kHalf,
    at::kBFloat16, at::kFloat,  at::kDouble, at::kComplexFloat,  at::kComplexDouble};
constexpr Reduction kReductions[] = {Reduction::kSum,   Reduction::kProduct, Reduction::kMin,
                                     Reduction::kMax,   Reduction::kAverage, Reduction::kBitAnd,
                                     Reduction::kBitOr, Reduction::kBitXor,  Reduction::kPremulSum};
constexpr double kScale = 0.5;

bool is_complex(at::ScalarType type) { return c10::isComplexType(type); }
bool is_float(at::ScalarType type) { return c10::isFloatingType(type); }

/// Double for what is computed in floats, long for the rest: [count], complex numbers as [count,
/// 2].
at::Tensor plain(int rank, std::int64_t count, at::ScalarType type, Reduction reduction) {
  const at::Tensor i = at::arange(count, at::kLong);
  if (type == at::kBool) return (i + rank).remainder(3).eq(0).to(at::kLong);
  // At most 16 and even above 8, so that the smallest float has it; products of ones and twos.
  at::Tensor v = reduction == Reduction::kProduct
                     ? 1 + (i + rank).remainder(2)
                     : (3 * rank + i).remainder(8) * (1 + i.remainder(2));
  if (is_complex(type)) return at::stack({v, v + 2 * rank}, 1).to(at::kDouble);
  if (!is_float(type)) return v;
  v = v.to(at::kDouble);
  // A NaN of one rank, at another place for each.
  const bool picks = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (picks && rank + 2 < count) v[rank + 2].fill_(std::numeric_limits<double>::quiet_NaN());
  return v;
}

at::Tensor typed(const at::Tensor& values, at::ScalarType type) {
  if (type == at::kComplexFloat) return at::view_as_complex(values.to(at::kFloat).contiguous());
  if (type == at::kComplexDouble) return at::view_as_complex(values.contiguous());
  return values.to(type);
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, Reduction reduction, bool boolean) {
  switch (reduction) {
    case Reduction::kProduct:
      return a * b;
    case Reduction::kMin:
      return at::minimum(a, b);
    case Reduction::kMax:
      return at::maximum(a, b);
    case Reduction::kBitAnd:
      return a.bitwise_and(b);
    case Reduction::kBitOr:
      return a.bitwise_or(b);
    case Reduction::kBitXor:
      return a.bitwise_xor(b);
    default:
      return boolean ? a.bitwise_or(b) : a + b;
  }
}

/// Of what `ranks` ranks contribute: exact until the division, which is in fp32 (fp64 for what has
/// as many bits), and then rounded once.
at::Tensor expected(int ranks, std::int64_t count, at::ScalarType type, Reduction reduction) {
  at::Tensor all = plain(0, count, type, reduction);
  for (int r = 1; r < ranks; ++r)
    all = combine(all, plain(r, count, type, reduction), reduction, type == at::kBool);
  if (reduction == Reduction::kPremulSum) all = all * kScale;
  if (reduction == Reduction::kAverage) {
    all = type == at::kDouble || type == at::kComplexDouble ? all / ranks
                                                            : all.to(at::kFloat) / ranks;
  }
  return typed(all, type);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto wide = [](const at::Tensor& x) {
    return is_complex(x.scalar_type()) ? at::view_as_real(x).to(at::kDouble)
           : is_float(x.scalar_type()) ? x.to(at::kDouble)
                                       : x.to(at::kLong);
  };
  const at::Tensor x = wide(a);
  const at::Tensor y = wide(b);
  return x.eq(y).bitwise_or(x.ne(x).bitwise_and(y.ne(y))).all().item<bool>();
}

/// Collects failures.
struct Failures {
  const Group& group;
  std::vector<std::string> lines;

  void expect(bool good, const std::string& what) {
    if (!good && lines.size() < 20)
      lines.push_back(fmt::format("{} (rank {} of {})", what, group.rank(), group.size()));
  }
};

void check_reductions(const Group& group, at::ScalarType type, std::int64_t count, int root,
                      Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  for (const Reduction reduction : kReductions) {
    const Options options{.reduction = reduction, .scale = kScale};
    const auto what = [&](const char* kind) {
      return fmt::format("{} of {} x {} by {}", kind, count, c10::toString(type),
                         collective::name(reduction));
    };
    const bool possible = collective::supports_fold(element_type(type), reduction);
    failures.expect(group.supports(Kind::kAllReduce, type, reduction) == possible,
                    what("supports all_reduce"));
    if (!possible) continue;
    at::Tensor sum = typed(plain(rank, count, type, reduction), type);
    group.all_reduce(sum, options);
    failures.expect(same(sum, expected(ranks, count, type, reduction)), what("all_reduce"));

    const at::Tensor mine = typed(plain(rank, count, type, reduction), type);
    at::Tensor rooted = mine.clone();
    group.reduce(rooted, root, options);
    if (rank == root)
      failures.expect(same(rooted, expected(ranks, count, type, reduction)), what("reduce"));

    const at::Tensor part = typed(plain(0, count, type, reduction), type);
    group.reduce_scatter(part, typed(plain(rank, count * ranks, type, reduction), type), options);
    failures.expect(same(part, expected(ranks, count * ranks, type, reduction)
                                   .slice(0, rank * count, (rank + 1) * count)),
                    what("reduce_scatter"));
  }
}

void check_moves(const Group& group, at::ScalarType type, std::int64_t count, int root,
                 Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  const auto of = [&](int r, std::int64_t n) {
    return typed(plain(r, n, type, Reduction::kSum), type);
  };
  const auto what = [&](const char* kind) {
    return fmt::format("{} of {} x {}", kind, count, c10::toString(type));
  };
  const auto empty = [&](std::int64_t n) { return at::full({n}, 1, at::kInt).to(type); };
  std::vector<at::Tensor> of_all;
  std::vector<at::Tensor> for_me;
  for (int r = 0; r < ranks; ++r) {
    of_all.push_back(plain(r, count, type, Reduction::kSum));
    for_me.push_back(
        plain(r, count * ranks, type, Reduction::kSum).slice(0, rank * count, (rank + 1) * count));
  }
  const at::Tensor gathered = typed(at::cat(of_all), type);
  const at::Tensor exchanged = typed(at::cat(for_me), type);

  const at::Tensor told = of(rank, count);
  group.broadcast(told, root);
  failures.expect(same(told, of(root, count)), what("broadcast"));
  at::Tensor out = empty(count * ranks);
  group.all_gather(out, of(rank, count));
  failures.expect(same(out, gathered), what("all_gather"));
  out = empty(count * ranks);
  group.all_to_all(out, of(rank, count * ranks));
  failures.expect(same(out, exchanged), what("all_to_all"));
  out = empty(count * ranks);
  group.gather(out, of(rank, count), root);
  if (rank == root) failures.expect(same(out, gathered), what("gather"));
  out = empty(count);
  group.scatter(out, of(rank, count * ranks), root);
  failures.expect(same(out, typed(for_me[static_cast<std::size_t>(root)], type)), what("scatter"));
  out = empty(count);
  Work sent = group.send(of(rank, count), (rank + 1) % ranks, 5, {.async = true});
  group.recv(out, (rank + ranks - 1) % ranks, 5);
  sent.order();
  failures.expect(same(out, of((rank + ranks - 1) % ranks, count)), what("send and recv"));
}

void check_messages(const Group& group, Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  // Tags choose among messages that are under way.
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  const at::Tensor first = at::full({3}, 10 * rank + 1, at::kInt);
  const at::Tensor second = at::full({70000}, 10 * rank + 2, at::kInt);
  Work one = group.send(first, next, 1, {.async = true});
  Work two = group.send(second, next, 2, {.async = true});
  const at::Tensor got_second = at::empty({70000}, at::kInt);
  const at::Tensor got_first = at::empty({3}, at::kInt);
  group.recv(got_second, previous, 2);
  group.recv(got_first, previous, 1);
  one.order(), two.order();
  failures.expect(got_first.eq(10 * previous + 1).all().item<bool>() &&
                      got_second.eq(10 * previous + 2).all().item<bool>(),
                  "tags");
  // From whoever comes first.
  std::int64_t sum = 0;
  if (rank == 0) {
    for (int r = 1; r < ranks; ++r) {
      const at::Tensor any = at::empty({4}, at::kLong);
      group.recv(any, -1, 9);
      sum += any[3].item<std::int64_t>();
    }
  } else {
    group.send(at::full({4}, rank, at::kLong), 0, 9);
  }
  failures.expect(rank != 0 || sum == ranks * (ranks - 1) / 2, "recv from any source");
}

// Rank r sends (r + peer) % 3 elements to each peer: none to some.
void check_uneven_exchange(const Group& group, Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  const auto count = [&](int from, int to) {
    return from == to ? 1u : static_cast<std::size_t>((from + 2 * to) % 3);
  };
  std::vector<std::size_t> send;
  std::vector<std::size_t> receive;
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> wanted;
  for (int r = 0; r < ranks; ++r) {
    send.push_back(count(rank, r)), receive.push_back(count(r, rank));
    sent.push_back(at::full({static_cast<std::int64_t>(send.back())}, 10 * rank + r, at::kShort));
    wanted.push_back(
        at::full({static_cast<std::int64_t>(receive.back())}, 10 * r + rank, at::kShort));
  }
  const at::Tensor want = at::cat(wanted);
  const at::Tensor out = at::empty(want.sizes(), at::kShort);
  group.all_to_all(out, at::cat(sent), receive, send);
  failures.expect(out.equal(want), "all_to_all with per-rank sizes");
}

void check_many(const Group& group, Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 20; ++i) tensors.push_back(at::full({i * 37}, rank + 1, type));
    tensors.push_back(at::full({4, 6}, 1, type).t());
    group.all_reduce(tensors);
    for (int i = 1; i < 20; ++i) {
      failures.expect(tensors[i].eq(ranks * (ranks + 1) / 2).all().item<bool>(),
                      "many tensors at once");
    }
    failures.expect(tensors.back().eq(ranks).all().item<bool>(),
                    "a transposed one among many tensors");
  }
  at::Tensor x = at::arange(12, at::kDouble).view({3, 4}).t() + rank;  // not contiguous
  group.all_reduce(x);
  failures.expect(
      x.equal(ranks * at::arange(12, at::kDouble).view({3, 4}).t() + ranks * (ranks - 1) / 2),
      "strides");

  std::vector<Work> works;
  const at::Tensor kept = at::full({100000}, 1.0f);
  for (int i = 0; i < 20; ++i)
    works.push_back(group.all_reduce(at::full({5000}, static_cast<float>(i)), {.async = true}));
  works.push_back(group.all_reduce(kept, {.async = true}));
  works.push_back(group.all_reduce(at::full({1}, 3, at::kHalf),
                                   {.reduction = Reduction::kAverage, .async = true}));
  const Deadline soon = Deadline::in(std::chrono::seconds(60));
  works.back().wait(soon);
  works[works.size() - 2].order();
  while (!works.front().test() && !soon.passed()) group.poll();
  failures.expect(kept[99999].item<float>() == static_cast<float>(ranks), "twenty in flight");
  failures.expect(works[20].duration().count() > 0, "duration");
  for (Work& work : works) work.wait(soon);
}

void check_lists(const Group& group, Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  const std::vector<std::int64_t> counts{3, 0, 5000, 1};
  std::vector<at::Tensor> mine;
  std::vector<at::Tensor> gathered;
  std::vector<at::Tensor> parts;
  std::vector<at::Tensor> told;
  for (const std::int64_t count : counts) {
    mine.push_back(at::full({count}, rank + 1, at::kInt));
    gathered.push_back(at::full({count, ranks}, -1, at::kInt).t());  // not contiguous
    parts.push_back(at::full({count}, -1, at::kInt));
    told.push_back(at::full({count}, rank, at::kInt));
  }
  gathered[2] = at::full({ranks, counts[2]}, -1, at::kInt);
  group.all_gather(gathered, mine);
  for (const at::Tensor& tensor : gathered) {
    for (int r = 0; r < ranks; ++r)
      failures.expect(tensor[r].eq(r + 1).all().item<bool>(), "all_gather of a list");
  }
  Work work = group.reduce_scatter(parts, gathered, {.async = true});
  work.order();
  for (const at::Tensor& part : parts)
    failures.expect(part.eq(ranks * (rank + 1)).all().item<bool>(), "reduce_scatter of a list");
  group.broadcast(told, ranks - 1);
  for (const at::Tensor& tensor : told)
    failures.expect(tensor.eq(ranks - 1).all().item<bool>(), "broadcast of a list");
  work = group.barrier({.async = true});
  work.order();
  failures.expect(work.test(), "an asynchronous barrier");
}

// What is only read may overlap itself; what requires a gradient is written all the same.
void check_views(const Group& group, Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  const at::Tensor same = at::full({1}, rank, at::kFloat).expand({600});
  const at::Tensor got = at::full({600}, -1.0f);
  const at::Tensor all = at::full({ranks, 600}, -1.0f);
  Work sent = group.send(same, (rank + 1) % ranks, 3, {.async = true});
  group.recv(got, (rank + ranks - 1) % ranks, 3);
  sent.order();
  failures.expect(got.eq((rank + ranks - 1) % ranks).all().item<bool>(),
                  "send of an expanded tensor");
  group.all_gather(all, same);
  failures.expect(all[ranks - 1].eq(ranks - 1).all().item<bool>(),
                  "all_gather of an expanded tensor");
  group.broadcast(rank == 0 ? same : got, 0);
  failures.expect(got.eq(rank == 0 ? ranks - 1 : 0).all().item<bool>(),
                  "broadcast of an expanded tensor");
  group.reduce(rank == 0 ? got : same, 0);
  failures.expect(rank != 0 || got.eq(ranks - 1 + ranks * (ranks - 1) / 2).all().item<bool>(),
                  "reduce of expanded tensors");
  at::Tensor leaf = at::full({4, 6}, rank + 1.0).t();
  leaf.set_requires_grad(true);
  group.all_reduce(leaf);
  failures.expect(leaf.eq(ranks * (ranks + 1) / 2).all().item<bool>(),
                  "all_reduce of a transposed leaf");
}

void check_sum(const Group& group, Failures& failures) {
  // Powers of two: each rank has a bit of its own, so a rank that is missed or counted twice shows.
  const double sum = group.sum(std::ldexp(1.0, group.rank()));
  failures.expect(sum == std::ldexp(1.0, group.size()) - 1, "sum of a number a rank");
}

void check_parts(const Group& group, Failures& failures) {
  const int ranks = group.size();
  const int rank = group.rank();
  const Group half = group.split(rank % 2, -rank);  // in reverse
  failures.expect(half.size() == (ranks + 1 - rank % 2) / 2, "size of a part");
  failures.expect(half.rank() == half.size() - 1 - rank / 2, "order of a part");
  at::Tensor ones = at::full({9}, 1.0);
  half.all_reduce(ones);
  failures.expect(ones.eq(half.size()).all().item<bool>(), "sum in a part");
  const Group rest = group.split(rank == 0 ? -1 : 7, 0);
  failures.expect(rest.size() == (rank == 0 ? 1 : ranks - 1), "a part without rank 0");
  const Group again = rest.split(0, rest.rank());
  at::Tensor number = at::full({2}, rank, at::kLong);
  again.all_reduce(number);
  failures.expect(rank == 0 || number[1].item<std::int64_t>() == ranks * (ranks - 1) / 2,
                  "sum in a part of a part");
}

/// One operation of a random program in four groups of the ranks: all, pairs, even and odd, and all
/// once more.
struct Step {
  std::size_t group = 0, kind = 0;
  std::int64_t count = 0;
  double value = 0;
};

struct Started {
  Work work;
  at::Tensor output, wanted;
};

std::size_t below(std::mt19937& random, std::size_t n) {
  return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
}

/// From each rank as many numbers as its number says, others to every rank.
Started start_exchange(const Group& part, const Step& step) {
  const int n = part.size();
  const int me = part.rank();
  const auto floats = [&](int from, int to) {
    return step.count / 8 * static_cast<std::int64_t>((from + 2 * to) % 3);
  };
  std::vector<std::size_t> sent, received;
  std::vector<at::Tensor> input{at::empty({0}, at::kDouble)};
  std::vector<at::Tensor> wanted = input;
  const auto value = [&](int from, int to) { return step.value + from + 100.0 * to; };
  for (int other = 0; other < n; ++other) {
    sent.push_back(static_cast<std::size_t>(floats(me, other)));
    received.push_back(static_cast<std::size_t>(floats(other, me)));
    input.push_back(at::full({floats(me, other)}, value(me, other), at::kDouble));
    wanted.push_back(at::full({floats(other, me)}, value(other, me), at::kDouble));
  }
  const at::Tensor all = at::cat(wanted).zero_();
  return {part.all_to_all(all, at::cat(input), received, sent, {.async = true}), all,
          at::cat(wanted)};
}

/// Starts an operation, unless it is a message for which this rank has no partner.
std::optional<Started> start(const Group& part, const Step& step) {
  const auto [group, kind, count, value] = step;
  const int n = part.size();
  const int me = part.rank();
  const at::Tensor own = at::full({count}, value + me, at::kDouble);
  const auto all_are = [&, count = count](double number) {
    return at::full({count}, number, at::kDouble);
  };
  const double sum = n * value + n * (n - 1) / 2;  // of value + rank
  if (kind == 0) return Started{part.all_reduce(own, {.async = true}), own, all_are(sum)};
  if (kind == 1) {
    const at::Tensor all = at::empty({n * count}, at::kDouble);
    const at::Tensor ranks = at::arange(n, at::kDouble) + value;
    return Started{part.all_gather(all, own, {.async = true}), all, ranks.repeat_interleave(count)};
  }
  if (kind == 2) {
    const at::Tensor all = at::full({n * count}, value + me, at::kDouble);
    return Started{part.reduce_scatter(own, all, {.async = true}), own, all_are(sum)};
  }
  if (kind == 3) return start_exchange(part, step);
  if (kind == 4) {
    // In pairs, to the odd one.
    if ((me ^ 1) >= n) return std::nullopt;
    const auto tag = static_cast<std::uint32_t>(value);
    Work work = me % 2 == 0 ? part.send(own, me + 1, tag, {.async = true})
                            : part.recv(own, me - 1, tag, {.async = true});
    return Started{work, own, all_are(value + me - me % 2)};
  }
  const int root = static_cast<int>(count) % n;
  return Started{part.broadcast(own, root, {.async = true}), own, all_are(value + root)};
}

/// What a rank has started and not waited for.
class Waiting {
 public:
  Waiting(const char* program, std::mt19937& own, Failures& failures)
      : program_(program), own_(own), failures_(failures) {}
  void add(std::optional<Started> one) {
    if (one) started_.push_back(std::move(*one));
  }
  bool empty() const { return started_.empty(); }
  /// Waits for any one of them.
  void wait() {
    std::swap(started_[below(own_, started_.size())], started_.back());
    started_.back().work.wait(Deadline::in(std::chrono::seconds(60)));
    failures_.expect(started_.back().output.equal(started_.back().wanted), program_);
    started_.pop_back();
  }

 private:
  const char* program_;
  std::mt19937& own_;
  Failures& failures_;
  std::vector<Started> started_;
};

/// Random programs in four groups. First every rank goes through the groups in an order of its own,
/// which is that of the others within each group only; all waits come behind the last start. Then
/// all ranks start in one order, and each waits when and for which it likes.
void check_programs(const Group& group, Failures& failures) {
  const int rank = group.rank();
  const std::vector<Group> groups{group, group.split(rank / 2, rank), group.split(rank % 2, rank),
                                  group.split(0, rank)};
  std::mt19937 common(7);
  std::mt19937 own(100 + static_cast<unsigned>(rank));
  std::vector<Step> steps;
  for (int i = 0; i < 40; ++i) {
    steps.push_back({below(common, groups.size()), below(common, 6),
                     static_cast<std::int64_t>(1 + below(common, 5000)), i + 1.0});
  }

  Waiting behind("a program with groups in any order", own, failures);
  std::vector<std::vector<Step>> to_start(groups.size());
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    to_start[step->group].push_back(*step);
  for (std::size_t left = steps.size(); left > 0;) {
    std::vector<Step>& next = to_start[below(own, groups.size())];
    if (next.empty()) continue;
    --left;
    behind.add(start(groups[next.back().group], next.back()));
    next.pop_back();
  }
  while (!behind.empty()) behind.wait();

  Waiting anywhere("a program with waits anywhere", own, failures);
  for (const Step& step : steps) {
    anywhere.add(start(groups[step.group], step));
    while (!anywhere.empty() && below(own, 2) == 0) anywhere.wait();
  }
  while (!anywhere.empty()) anywhere.wait();
}

void check_mistakes(const Group& group, Failures& failures) {
  const auto refused = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kUsage;
    }
    return false;
  };
  failures.expect(
      refused([&] { group.all_reduce(at::full({3}, 1.0f), {.reduction = Reduction::kBitAnd}); }),
      "bits of floats are refused");
  failures.expect(refused([&] { group.broadcast(at::full({3}, 1.0f), group.size()); }),
                  "a root that there is not is refused");
  at::Tensor one = at::full({1}, 1.0f);
  group.all_reduce(one);
  failures.expect(one.item<float>() == static_cast<float>(group.size()),
                  "a refused call changes nothing");
}

}  // namespace

std::vector<std::string> check_types(const Group& group) {
  Failures failures{group, {}};
  int root = 0;
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t count : {0, 1, 5, 1031}) {
      check_reductions(group, type, count, root, failures);
      check_moves(group, type, count, root, failures);
      root = (root + 1) % group.size();
    }
  }
  return failures.lines;
}

std::vector<std::string> check_calls(const Group& group) {
  Failures failures{group, {}};
  group.barrier();
  check_messages(group, failures);
  check_uneven_exchange(group, failures);
  check_many(group, failures);
  check_lists(group, failures);
  check_views(group, failures);
  check_sum(group, failures);
  check_parts(group, failures);
  check_programs(group, failures);
  check_mistakes(group, failures);
  group.barrier();
  return failures.lines;
}

std::optional<Error> thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace shoal::comm
