// Construction of a group of the c10d backend "shoal", the groups that are made from it, and its
// end.
#include <algorithm>
#include <numeric>

#include "python/src/backend.h"
#include "python/src/progress.h"
#include "python/src/rendezvous.h"
#include "shoal/base/check.h"

namespace shoal::python {
namespace {

constexpr int kAbortFirst = 1;  // torch.distributed.SHRINK_ABORT

std::vector<int> all_ranks(int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The options of a group with a rendezvous of its own: those given, else the network of `old` and
/// no folder.
ShoalOptions options_of(const c10::intrusive_ptr<c10d::Backend::Options>& options,
                        const Channel& old) {
  const auto* own = options ? dynamic_cast<const ShoalOptions*>(options.get()) : nullptr;
  return own ? *own : ShoalOptions("", old.progress->origin().network);
}

}  // namespace

ShoalBackend::ShoalBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::milliseconds timeout, std::vector<int> members,
                           std::shared_ptr<Channel> met, const ShoalOptions& options)
    : c10d::Backend(rank, size), members_(std::move(members)), timeout_(timeout) {
  channel_ = met ? new_group(store, *met, members_, timeout)
                 : rendezvous(store, rank, size, timeout, options);
  init();
}

ShoalBackend::ShoalBackend(int rank, int size, std::chrono::milliseconds timeout,
                           std::shared_ptr<Channel> channel)
    : c10d::Backend(rank, size),
      members_(all_ranks(size)),
      timeout_(timeout),
      channel_(std::move(channel)) {
  init();
}

ShoalBackend::~ShoalBackend() { channel_->close(); }

c10::intrusive_ptr<c10d::Backend::Options> ShoalBackend::getBackendOptions() {
  auto options = c10::make_intrusive<ShoalOptions>(channel_->progress->flight().directory,
                                                   channel_->progress->origin().network, timeout_);
  options->group_name = getGroupUid();
  options->group_desc = getGroupDesc();
  options->global_ranks_in_group.assign(members_.begin(), members_.end());
  return options;
}

c10::intrusive_ptr<c10d::Backend> ShoalBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  // Ranks outside the new group take no part in making it.
  if (own == ranks.end()) return nullptr;
  std::vector<int> members;
  for (const int rank : ranks) members.push_back(members_.at(static_cast<std::size_t>(rank)));
  return c10::make_intrusive<ShoalBackend>(
      store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
      options ? options->timeout : timeout_, std::move(members), channel_);
}

c10::intrusive_ptr<c10d::Backend> ShoalBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const c10::intrusive_ptr<Options>& options,
                                                      const int& rank, const int& size) {
  const auto timeout = options ? options->timeout : timeout_;
  return c10::make_intrusive<ShoalBackend>(
      rank, size, timeout, rendezvous(store, rank, size, timeout, options_of(options, *channel_)));
}

c10::intrusive_ptr<c10d::Backend> ShoalBackend::shrink(const std::vector<int64_t>& ranks_to_exclude,
                                                       int shrink_flags,
                                                       const c10::intrusive_ptr<Options>& options) {
  std::vector<int> left;
  std::vector<int> world;
  for (int r = 0; r < size_; ++r) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), r) != ranks_to_exclude.end())
      continue;
    left.push_back(r);
    world.push_back(members_[static_cast<std::size_t>(r)]);
  }
  const auto own = std::find(left.begin(), left.end(), rank_);
  SHOAL_USER_CHECK(own != left.end(), "shrink", "rank {} is one of those to exclude", rank_);
  // Operations in flight with a rank that is gone would otherwise run into their timeouts.
  if (shrink_flags & kAbortFirst) abort();
  const auto timeout = options ? options->timeout : timeout_;
  const int rank = static_cast<int>(own - left.begin());
  const int size = static_cast<int>(left.size());
  // Every remaining rank counts alike, and the count becomes part of the name of the rendezvous.
  ++shrinks_;
  return c10::make_intrusive<ShoalBackend>(
      rank, size, timeout,
      rendezvous_again(*channel_, world, shrinks_, timeout, options_of(options, *channel_)));
}

void ShoalBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  SHOAL_USER_CHECK(!hasHooks(), "group", "a hook on completion is registered already");
  // One copy: those of a Python function need the interpreter's lock.
  const auto shared = std::make_shared<const CompletionHook>(std::move(hook));
  onCompletionHook_ = [shared](std::shared_ptr<c10d::WorkInfo> info) {
    (*shared)(std::move(info));
  };
  channel_->progress->set_hook(*channel_, shared);
}

void ShoalBackend::waitForPendingWorks() { channel_->progress->drain(*channel_); }

void ShoalBackend::abort() {
  channel_->abort("abort", "the program aborted the group");
  channel_->error = c10d::ErrorType::COMM_ERROR;
}

void ShoalBackend::shutdown() { channel_->close(); }

}  // namespace shoal::python
