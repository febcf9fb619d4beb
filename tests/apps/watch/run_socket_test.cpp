#include "apps/shoal/watch/run_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/shoal/watch/request_server.h"
#include "tests/apps/program.h"
#include "tests/error_of.h"

namespace shoal::apps::testing::run_socket_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// A server that answers each line with "heard <line>".
class Server {
 public:
  explicit Server(const std::string& directory) : server_(listeners(directory)) {}

 private:
  static std::vector<Listener> listeners(const std::string& directory) {
    std::vector<Listener> all;
    all.push_back(
        {listen_in(directory), true, [](std::string_view received) -> std::optional<std::string> {
           if (received.find('\n') == std::string_view::npos) return std::nullopt;
           return "heard " + std::string(received);
         }});
    return all;
  }
  RequestServer server_;
};

std::string asked(const std::string& directory, const std::string& request = "status") {
  return ask_run(directory, request, Deadline::in(10s)).value_or("nobody");
}

TEST(RunSocket, CarriesAQuestionAndItsAnswer) {
  const Folder folder;
  EXPECT_EQ(asked(folder.path()), "nobody");
  EXPECT_EQ(asked(folder.path() / "nowhere"), "nobody");
  const Server server(folder.path());
  EXPECT_EQ(asked(folder.path()), "heard status");
  EXPECT_EQ(asked(folder.path(), "stop"), "heard stop");
}

TEST(RunSocket, ItsPathMayBeLong) {
  const Folder folder;
  std::filesystem::path deep = folder.path();
  for (int i = 0; i < 4; ++i) deep /= std::string(200, static_cast<char>('a' + i));
  std::filesystem::create_directories(deep);
  const Server server(deep);
  EXPECT_TRUE(std::filesystem::is_socket(deep / "control"));
  EXPECT_EQ(asked(deep), "heard status");
}

TEST(RunSocket, OneThatWasLeftBehindIsReplaced) {
  const Folder folder;
  // A process that is killed closes its socket and leaves the file.
  listen_in(folder.path());
  ASSERT_TRUE(std::filesystem::is_socket(folder.path() / "control"));
  EXPECT_EQ(asked(folder.path()), "nobody");
  const Server server(folder.path());
  EXPECT_EQ(asked(folder.path()), "heard status");
  remove_socket(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "control"));
  remove_socket(folder.path());  // is no error
}

TEST(RunSocket, IsForItsUserAlone) {
  const Folder folder;
  const mode_t before = ::umask(0);
  const Server server(folder.path());
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((folder.path() / "control").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(RunSocket, TurnsOtherUsersAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const Folder folder;
  const Server server(folder.path());
  // As if somebody had opened the file to all: the server still asks who calls.
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  std::filesystem::permissions(folder.path() / "control", std::filesystem::perms::all);
  EXPECT_EQ(asked(folder.path()), "heard status") << "this user";
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    // Without memory that both write: the child says in its exit code what it got.
    // A process that changes its user may not look into its own /proc/self/fd until it says so.
    if (::setresuid(65534, 65534, 65534) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0) ::_exit(9);
    try {
      ::_exit(asked(folder.path()) == "nobody" ? 1 : 0);
    } catch (const Error& error) {
      ::_exit(error.kind() == ErrorKind::kUsage ? 2 : 3);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(stranger, &status, 0), stranger);
  // The client, too, sees that the server is another user's: root's, which it may trust.
  EXPECT_EQ(WEXITSTATUS(status), 1) << "it was turned away";
}

TEST(RunSocket, WaitsForAnAnswerUntilItsDeadline) {
  const Folder folder;
  const wire::Descriptor silent = listen_in(folder.path());
  const auto begin = Clock::now();
  const Error error = error_of([&] { ask_run(folder.path(), "status", Deadline::in(50ms)); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("does not answer"));
  EXPECT_LT(Clock::now() - begin, 10s);
  // Its queue is full of such clients: connecting waits, too, and ends.
  const std::string path = folder.path();
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(error_of([&] { ask_run(path, "status", Deadline::in(1ms)); }).kind(),
              ErrorKind::kTimeout);
  }
}

TEST(RunSocket, CannotBeMadeWhereThereIsNoDirectory) {
  EXPECT_EQ(error_of([] { listen_in("/nowhere/at/all"); }).kind(), ErrorKind::kOutput);
}

}  // namespace
}  // namespace shoal::apps::testing::run_socket_test
