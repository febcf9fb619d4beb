#include "shoal/checkpoint/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace shoal::checkpoint {
namespace {

using Words = std::vector<std::string>;

/// The text of every rank, in rank order.
Words all_gather_text(const comm::Group& group, const comm::Options& options,
                      const std::string& text) {
  const at::Tensor mine =
      at::scalar_tensor(static_cast<std::int64_t>(text.size()), at::kLong).reshape({1});
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.all_gather(lengths, mine, options);
  const auto* length = lengths.const_data_ptr<std::int64_t>();
  // all_gather moves equal parts, so the texts are padded to the longest.
  const std::int64_t longest = *std::max_element(length, length + group.size());
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  const at::Tensor all = at::empty({group.size() * longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  group.all_gather(all, padded, options);
  Words texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * longest,
                       length[rank]);
  }
  return texts;
}

}  // namespace

Words agree(const comm::Group& group, Duration timeout, const std::function<std::string()>& work) {
  // The first byte tells results from errors; that of an error is followed by its kind, then its
  // message.
  constexpr char kResult = 'r';
  constexpr char kError = 'e';
  if (group.size() == 1) return {work()};
  std::exception_ptr mine;
  std::string report;
  const auto failed = [&](ErrorKind kind, const std::string& message) {
    mine = std::current_exception();
    report = std::string{kError, static_cast<char>(kind)} + message;
  };
  try {
    report = kResult + work();
  } catch (const Error& error) {
    failed(error.kind(),
           error.hint().empty() ? error.message() : error.message() + ". Hint: " + error.hint());
  } catch (const std::exception& error) {
    failed(ErrorKind::kInternal, error.what());
  }
  // A rank whose work failed takes part too: otherwise the others would wait for it until their
  // timeout.
  Words reports = all_gather_text(group, {.timeout = timeout}, report);
  // This rank's own error says more about it than another's.
  if (mine) std::rethrow_exception(mine);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (reports[rank][0] == kError) {
      throw Error(static_cast<ErrorKind>(reports[rank][1]), "checkpoint", reports[rank].substr(2))
          .at(group.rank(), group.size())
          .from(rank);
    }
  }
  for (std::string& text : reports) text.erase(0, 1);
  return reports;
}

}  // namespace shoal::checkpoint
