#include "shoal/ops/key_ranges.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "shoal/base/check.h"

namespace shoal::ops {
namespace {

/// A row of TokenPlaces, as plain memory.
struct PlacedRow {
  std::int64_t columns;
  const std::int64_t* positions;  // null: 0 .. columns - 1
  const std::int32_t* documents;  // null: one

  std::int64_t position(std::int64_t i) const { return positions == nullptr ? i : positions[i]; }
  std::int32_t document(std::int64_t i) const { return documents == nullptr ? 0 : documents[i]; }
};

/// TokenPlaces whose tensors were checked and lie in one piece.
class Placed {
 public:
  explicit Placed(const TokenPlaces& tokens) : columns_(tokens.columns) {
    SHOAL_USER_CHECK(columns_ <= std::numeric_limits<std::int32_t>::max(), "attention",
                     "{} tokens in a row: ranges of keys are counted in 32 bits", columns_);
    if (tokens.positions.defined()) {
      const at::Tensor& x = tokens.positions;
      SHOAL_USER_CHECK(x.dim() == 1 && x.size(0) == columns_ && x.scalar_type() == at::kLong,
                       "attention", "positions must be [{}] int64, not {} dimensions of {}",
                       columns_, x.dim(), c10::toString(x.scalar_type()));
      positions_ = x.contiguous();
    }
    if (tokens.documents.defined()) {
      const at::Tensor& x = tokens.documents;
      SHOAL_USER_CHECK(x.dim() == 2 && x.size(1) == columns_ && x.scalar_type() == at::kInt,
                       "attention", "documents must be [B, {}] int32, not {} dimensions of {}",
                       columns_, x.dim(), c10::toString(x.scalar_type()));
      documents_ = x.contiguous();
    }
  }

  std::int64_t samples() const { return documents_.defined() ? documents_.size(0) : 1; }

  /// The row of a sample; a single row serves all samples.
  PlacedRow row(std::int64_t sample) const {
    const std::int64_t from = samples() > 1 ? sample * columns_ : 0;
    return {columns_, positions_.defined() ? positions_.const_data_ptr<std::int64_t>() : nullptr,
            documents_.defined() ? documents_.const_data_ptr<std::int32_t>() + from : nullptr};
  }

 private:
  std::int64_t columns_;
  at::Tensor positions_, documents_;
};

struct ColumnRun {
  std::int64_t begin, end;
};
using DocumentRuns = std::unordered_map<std::int32_t, ColumnRun>;

/// Returns the run of columns of each document.
DocumentRuns runs_of_documents(const PlacedRow& keys, std::int64_t sample) {
  DocumentRuns runs;
  ColumnRun* run = nullptr;
  for (std::int64_t i = 0; i < keys.columns; ++i) {
    if (i == 0 || keys.document(i) != keys.document(i - 1)) {
      const auto [place, is_new] = runs.try_emplace(keys.document(i), ColumnRun{i, i});
      run = &place->second;
      if (!is_new) {
        throw Error(ErrorKind::kData, "attention",
                    fmt::format("sample {}: document {} ends at column {} and comes back at column "
                                "{}, behind another document",
                                sample, keys.document(i), run->end, i))
            .hint("give every run of tokens a document number of its own");
      }
    } else if (keys.position(i) < keys.position(i - 1)) {
      throw Error(ErrorKind::kData, "attention",
                  fmt::format("sample {}: key {} has position {}, behind position {}", sample, i,
                              keys.position(i), keys.position(i - 1)))
          .hint("sort the keys of each document by their positions");
    }
    run->end = i + 1;
  }
  return runs;
}

/// Returns the number of leading keys of the run that are not behind `position`.
std::int64_t count_up_to(const PlacedRow& keys, const ColumnRun& run, std::int64_t position) {
  if (keys.positions == nullptr)
    return std::clamp<std::int64_t>(position + 1 - run.begin, 0, run.end - run.begin);
  const std::int64_t* begin = keys.positions + run.begin;
  return std::upper_bound(begin, keys.positions + run.end, position) - begin;
}

void write_ranges(const PlacedRow& queries, const PlacedRow& keys, const DocumentRuns& runs,
                  std::int32_t* ranges) {
  // Neighbours mostly belong to one document, which need be found once only.
  auto run = runs.end();
  for (std::int64_t i = 0; i < queries.columns; ++i) {
    if (run == runs.end() || run->first != queries.document(i))
      run = runs.find(queries.document(i));
    const ColumnRun seen = run == runs.end() ? ColumnRun{0, 0} : run->second;
    ranges[2 * i] = static_cast<std::int32_t>(seen.begin);
    ranges[2 * i + 1] =
        static_cast<std::int32_t>(seen.begin + count_up_to(keys, seen, queries.position(i)));
  }
}

}  // namespace

at::Tensor causal_ranges(std::int64_t queries, std::int64_t keys, std::int64_t offset) {
  at::Tensor ranges = at::empty({1, queries, 2}, at::kInt);
  auto* out = ranges.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < queries; ++i) {
    out[2 * i] = 0;
    out[2 * i + 1] = static_cast<std::int32_t>(std::clamp<std::int64_t>(i + 1 + offset, 0, keys));
  }
  return ranges;
}

at::Tensor key_ranges(const TokenPlaces& queries, const TokenPlaces& keys) {
  const Placed of_queries(queries);
  const Placed of_keys(keys);
  SHOAL_USER_CHECK(queries.documents.defined() == keys.documents.defined(), "attention",
                   "documents are given for the {} only",
                   queries.documents.defined() ? "queries" : "keys");
  const std::int64_t samples = std::max(of_queries.samples(), of_keys.samples());
  SHOAL_USER_CHECK(of_queries.samples() == of_keys.samples() || of_queries.samples() == 1 ||
                       of_keys.samples() == 1,
                   "attention", "documents of queries have {} samples, those of keys {}",
                   of_queries.samples(), of_keys.samples());
  at::Tensor ranges = at::empty({samples, queries.columns, 2}, at::kInt);
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const PlacedRow row = of_keys.row(sample);
    write_ranges(of_queries.row(sample), row, runs_of_documents(row, sample),
                 ranges.mutable_data_ptr<std::int32_t>() + sample * queries.columns * 2);
  }
  return ranges;
}

bool in_order(const TokenPlaces& tokens) {
  if (!tokens.positions.defined()) return true;
  const Placed placed(tokens);
  for (std::int64_t sample = 0; sample < placed.samples(); ++sample) {
    const PlacedRow row = placed.row(sample);
    for (std::int64_t i = 1; i < row.columns; ++i) {
      if (row.document(i) == row.document(i - 1) && row.position(i) < row.position(i - 1))
        return false;
    }
  }
  return true;
}

}  // namespace shoal::ops
