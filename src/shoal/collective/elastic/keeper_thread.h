#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "shoal/collective/elastic/etcd_keeper.h"
#include "shoal/collective/membership/chain.h"
#include "shoal/collective/membership/membership.h"

namespace shoal::collective::elastic {

/// Asks an etcd on a thread of its own, so that letters do not wait for it. One question at a time:
/// the newest, at most once for every `ask`. Threads: any may call any function.
class KeeperThread {
 public:
  /// Calls `tell` on its thread with each answer (ChainAnswered), and with why there is none
  /// (ChainSilent).
  KeeperThread(std::unique_ptr<EtcdKeeper> keeper, std::function<void(membership::Event)> tell);
  /// Gives the running request up.
  ~KeeperThread();
  KeeperThread(const KeeperThread&) = delete;
  KeeperThread& operator=(const KeeperThread&) = delete;

  void ask(membership::ChainQuestion question);

 private:
  void run();

  const std::unique_ptr<EtcdKeeper> keeper_;
  const std::function<void(membership::Event)> tell_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::optional<membership::ChainQuestion> next_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace shoal::collective::elastic
