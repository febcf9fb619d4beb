#pragma once

#include <sys/types.h>

#include <string>

namespace shoal::testing {

/// An etcd of this host, with a folder for its data, that is killed and started again.
class EtcdServer {
 public:
  /// The program; empty where there is none, neither installed nor unpacked by
  /// tools/setup_peers.sh.
  static std::string program();

  enum class Tls { kOff, kOwnCertificate };

  /// Starts it, and waits until it answers. With TLS it makes a certificate that signs itself. It
  /// is where the calling thread is, and so is what `start` starts.
  explicit EtcdServer(Tls tls = Tls::kOff, const std::string& host = "127.0.0.1");
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  const std::string& address() const { return address_; }  ///< "http://HOST:PORT" (https)
  std::string ca_file() const;                             ///< its certificate; empty without TLS
  /// SIGKILL: what it has not written is lost.
  void kill();
  /// Starts it again with the same data, and waits until it answers.
  void start();

 private:
  const Tls tls_;
  std::string folder_;
  std::string address_;
  std::string peer_address_;
  pid_t process_ = -1;
};

}  // namespace shoal::testing
