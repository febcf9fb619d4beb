#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/wire/meddling_relay.h"
#include "tests/wire/soon.h"

// Ranks of one process whose connections run TLS.

namespace shoal::wire::tls_ranks {

/// The store as a rank sees it that finds rank 0 at another address.
class StoreWithAnotherRank0 final : public KeyValues {
 public:
  StoreWithAnotherRank0(KeyValues& store, std::function<Endpoint(const Endpoint&)> replace)
      : store_(store), replace_(std::move(replace)) {}
  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    store_.set(key, value, deadline);
  }
  std::string wait(const std::string& key, Deadline deadline) override {
    const std::string value = store_.wait(key, deadline);
    return key == "peers/world/0" ? replace_(parse_endpoint(value)).text() : value;
  }
  std::string address() override { return store_.address(); }

 private:
  KeyValues& store_;
  std::function<Endpoint(const Endpoint&)> replace_;
};

using OptionsOf = std::function<TcpTransport::Options(int rank)>;

inline TcpTransport::Options with_tls(int rails = 1) {
  return {.key = "key",
          .heartbeat = std::chrono::milliseconds(100),
          .silence = std::chrono::seconds(60),
          .rails = rails,
          .tls = TlsMode::kOn};
}

/// Ranks of this process, each connected by a thread of its own. With a Meddle, the higher ranks
/// reach rank 0 through it.
class Ranks {
 public:
  Ranks(int size, const OptionsOf& options, const MeddlingRelay::Meddle& meddle = {})
      : all(static_cast<std::size_t>(size)), errors(all.size()) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          StoreClient client(store_.endpoint(), "key", soon());
          StoreWithAnotherRank0 through(client,
                                        [&](const Endpoint& to) { return relay_to(to, meddle); });
          KeyValues& seen = rank > 0 && meddle ? static_cast<KeyValues&>(through) : client;
          all[static_cast<std::size_t>(rank)] =
              std::make_unique<TcpTransport>(options(rank), seen, rank, size, soon());
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error;
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
  Endpoint address_of_rank_0() {
    return parse_endpoint(
        StoreClient(store_.endpoint(), "key", soon()).wait("peers/world/0", soon()));
  }

 private:
  Endpoint relay_to(const Endpoint& to, const MeddlingRelay::Meddle& meddle) {
    const std::lock_guard lock(mutex_);
    if (!relay_) relay_.emplace(to, meddle);
    return relay_->endpoint();
  }

  StoreServer store_{"127.0.0.1", {0, 0}, "key"};
  std::mutex mutex_;
  std::optional<MeddlingRelay> relay_;

 public:
  std::vector<std::unique_ptr<TcpTransport>> all;
  std::vector<std::optional<Error>> errors;
};

inline Bytes message_of(int from, int to, std::uint64_t number, std::size_t bytes) {
  Bytes message(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    message[i] = static_cast<std::byte>(i * 7 + i / 251 + number * 13 + 31u * from + 97u * to);
  return message;
}

/// Takes a whole message, or throws what the transport throws.
inline Bytes take_message(TcpTransport& transport, int from, Stream stream, std::size_t bytes) {
  Bytes message(bytes);
  std::size_t arrived = 0;
  for (const Deadline end = soon(); arrived < bytes && !end.passed();) {
    const auto seen = transport.events();
    transport.check();
    if (const auto chunk = transport.take(from, stream)) {
      std::copy_n(chunk->data(), chunk->bytes(),
                  message.begin() + static_cast<std::ptrdiff_t>(chunk->offset()));
      arrived += chunk->bytes();
    } else {
      transport.wait_for_event(seen, std::chrono::milliseconds(5));
    }
  }
  return message;
}

/// Every rank sends every other one messages of some sizes. Returns what the ranks threw; the bytes
/// that arrive are right.
inline std::vector<std::optional<Error>> exchange(Ranks& ranks, std::uint64_t group,
                                                  const std::vector<std::size_t>& sizes = {
                                                      1, 3000, 200000, 1100000}) {
  const int size = static_cast<int>(ranks.all.size());
  std::vector<std::optional<Error>> errors(ranks.all.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpTransport& transport = *ranks.all[static_cast<std::size_t>(rank)];
      try {
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          for (std::uint64_t i = 0; i < sizes.size(); ++i)
            transport.send(peer, {group, i}, 0, message_of(rank, peer, i, sizes[i]));
        }
        transport.flush();
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          for (std::uint64_t i = 0; i < sizes.size(); ++i) {
            EXPECT_EQ(take_message(transport, peer, {group, i}, sizes[i]),
                      message_of(peer, rank, i, sizes[i]));
          }
        }
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}
inline void expect_none(const std::vector<std::optional<Error>>& errors) {
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace shoal::wire::tls_ranks
