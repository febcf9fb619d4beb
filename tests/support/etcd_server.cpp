#include "tests/support/etcd_server.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "shoal/collective/elastic/etcd_keeper.h"
#include "shoal/wire/address.h"

extern char** environ;

namespace shoal::testing {
namespace {

constexpr auto kLongestStart = std::chrono::minutes(2);

std::string free_address(const std::string& scheme, const std::string& host = "127.0.0.1") {
  const wire::Descriptor listener = wire::listen_on(host, {0, 0});
  return scheme + "://" + wire::local_endpoint(listener.get()).text();
}

}  // namespace

std::string EtcdServer::program() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(std::string(path ? path : "") + ":" SHOAL_ETCD_FOLDER);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/etcd";
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

EtcdServer::EtcdServer(Tls tls, const std::string& host)
    : tls_(tls),
      address_(free_address(tls == Tls::kOff ? "http" : "https", host)),
      peer_address_(free_address("http")) {
  std::string name = (std::filesystem::temp_directory_path() / "shoal-etcd-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("no folder for etcd");
  folder_ = name;
  start();
}

EtcdServer::~EtcdServer() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string EtcdServer::ca_file() const {
  return tls_ == Tls::kOff ? "" : folder_ + "/data/fixtures/client/cert.pem";
}

void EtcdServer::kill() {
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = -1;
}

void EtcdServer::start() {
  std::vector<std::string> words = {program(),
                                    "--data-dir=" + folder_ + "/data",
                                    "--listen-client-urls=" + address_,
                                    "--advertise-client-urls=" + address_,
                                    "--listen-peer-urls=" + peer_address_,
                                    "--initial-advertise-peer-urls=" + peer_address_,
                                    "--initial-cluster=default=" + peer_address_};
  if (tls_ != Tls::kOff) words.emplace_back("--auto-tls");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const std::string log = folder_ + "/log";
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  const int failed =
      ::posix_spawn(&process_, words[0].c_str(), &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed) throw std::runtime_error("cannot start " + words[0]);
  const auto end = std::chrono::steady_clock::now() + kLongestStart;
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    try {
      collective::elastic::EtcdKeeper({.addresses = {address_}, .ca_file = ca_file()});
      return;
    } catch (const std::exception& error) {
      if (std::chrono::steady_clock::now() > end) throw;
    }
  }
}

}  // namespace shoal::testing
