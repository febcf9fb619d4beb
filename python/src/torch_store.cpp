#include "python/src/torch_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "shoal/base/error.h"
#include "shoal/wire/address.h"

namespace shoal::python {
namespace {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

/// Runs `call` on the store; what it throws becomes an error of Shoal's.
template <class Call>
auto ask(const std::string& key, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kTimeout, "init_process_group",
                fmt::format("PyTorch's store has no answer about '{}': {}", key, error.what()))
        .hint("a rank has not come, or the store's process is gone");
  }
}

}  // namespace

void TorchStore::set(const std::string& key, const std::string& value, Deadline) {
  ask(key, [&] { store_->set(key, value); });
}

std::string TorchStore::wait(const std::string& key, Deadline deadline) {
  return ask(key, [&] {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    store_->wait({key}, std::max(left, std::chrono::milliseconds(1)));  // zero would be without end
    return store_->get_to_str(key);
  });
}

// PyTorch's own wait hears nothing until its end, so this one asks again and again.
std::vector<std::optional<std::string>> TorchStore::wait_all(const std::vector<std::string>& keys,
                                                             Deadline deadline,
                                                             const std::function<void()>& check) {
  std::vector<std::optional<std::string>> values(keys.size());
  if (keys.empty()) return values;
  constexpr auto kShortest = std::chrono::milliseconds(1);
  constexpr auto kLongest = std::chrono::milliseconds(100);
  for (auto pause = kShortest;; pause = std::min(2 * pause, kLongest)) {
    check();
    const bool all = ask(keys.back(), [&] { return store_->check(keys); });
    if (all || deadline.passed()) break;
    std::this_thread::sleep_for(pause);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    values[i] = ask(keys[i], [&] {
      const bool there = store_->check({keys[i]});
      return there ? std::optional(store_->get_to_str(keys[i])) : std::nullopt;
    });
  }
  return values;
}

// On the store's own host its name often leads to loopback, which leads nowhere from other hosts:
// then the address of the default route, if there is one. No packet is sent to find it (the two
// networks below are those of documentation).
std::string TorchStore::address() {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store_.get());
  const auto plain = prefixed ? prefixed->getUnderlyingNonPrefixStore() : store_;
  if (const auto* tcp = dynamic_cast<const c10d::TCPStore*>(plain.get())) {
    const std::string towards = wire::address_towards(tcp->getHost());
    if (!towards.empty() && !is_loopback(towards)) return towards;
    for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"})
      if (const std::string address = wire::address_towards(elsewhere); !address.empty())
        return address;
    if (!towards.empty()) return towards;
  }
  throw Error(ErrorKind::kConfig, "init_process_group",
              "PyTorch's store does not say at which address other hosts reach this one")
      .hint(
          "name the network interface (SHOAL_INTERFACE, or interface= of shoal.Options), or meet "
          "at a TCPStore");
}

}  // namespace shoal::python
