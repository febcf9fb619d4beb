// How a program ends, and what a rank says of it to its launcher.
#include "apps/shoal/failure_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "apps/shoal/exit_code.h"
#include "shoal/base/error.h"

namespace shoal::apps::failure_report_test {
namespace {

TEST(Ending, OfEveryException) {
  EXPECT_EQ(ending_of(Error(ErrorKind::kData, "read", "broken")).code, 65);
  EXPECT_EQ(ending_of(Error(ErrorKind::kData, "read", "broken")).text, "[read] broken");
  EXPECT_EQ(ending_of(std::bad_alloc()).code, 81);
  EXPECT_EQ(ending_of(std::bad_alloc()).text, "out of memory");
  const Ending torch =
      ending_of(std::runtime_error("alloc_cpu: can't allocate memory: 12 bytes\nframe #0: x"));
  EXPECT_EQ(torch.code, 81);
  EXPECT_EQ(torch.text, "out of memory: can't allocate memory: 12 bytes");
  const Ending other = ending_of(std::runtime_error("first\nsecond\nframe #0: x"));
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.text, "first\nsecond");
  EXPECT_EQ(ending_of(std::runtime_error("words\nException raised from f\nframe #0: x")).text,
            "words");
  EXPECT_EQ(signal_exit_code(15), 143);
}

TEST(TorchrunErrorFile, IsInTorchrunsFormatAndDatesEchoesLater) {
  const std::string path = ::testing::TempDir() + "error-" + std::to_string(::getpid()) + ".json";
  const auto written = [&](bool about_a_peer) {
    write_torchrun_error_file(path, {1, about_a_peer, 0, "the \"data\"\nis \xff empty"});
    return nlohmann::json::parse(std::ifstream(path));
  };
  const auto before = std::time(nullptr);
  const nlohmann::json own = written(false);
  const nlohmann::json echo = written(true);
  const auto after = std::time(nullptr);
  EXPECT_EQ(own["message"]["message"], "the \"data\"\nis \xef\xbf\xbd empty");
  EXPECT_EQ(own["message"]["extraInfo"]["py_callstack"], own["message"]["message"]);
  const auto seconds = [](const nlohmann::json& file) {
    return std::stoll(file["message"]["extraInfo"]["timestamp"].get<std::string>());
  };
  EXPECT_GE(seconds(own), before);
  EXPECT_LE(seconds(own), after);
  EXPECT_GE(seconds(echo), before + 1);
  EXPECT_LE(seconds(echo), after + 1);
  std::remove(path.c_str());
  write_torchrun_error_file("/nowhere/error.json", {});  // is no error
}

TEST(FailureReport, TellsAPeersFailureFromItsOwn) {
  const auto about_a_peer = [](ErrorKind kind) {
    return failure_report(Error(kind, "test", "words"), 2).about_a_peer;
  };
  EXPECT_TRUE(about_a_peer(ErrorKind::kPeerLost));
  EXPECT_TRUE(about_a_peer(ErrorKind::kAborted));
  EXPECT_TRUE(about_a_peer(ErrorKind::kTimeout));
  for (const ErrorKind kind : {ErrorKind::kInternal, ErrorKind::kNonFinite, ErrorKind::kResource,
                               ErrorKind::kMismatch, ErrorKind::kData, ErrorKind::kOutput})
    EXPECT_FALSE(about_a_peer(kind)) << name(kind);
  EXPECT_TRUE(failure_report(Error(ErrorKind::kNonFinite, "t", "w").from(0), 2).about_a_peer);
  EXPECT_TRUE(failure_report(Error(ErrorKind::kNonFinite, "t", "w").at(1, 4), 2).about_a_peer);
  EXPECT_FALSE(failure_report(Error(ErrorKind::kNonFinite, "t", "w").at(2, 4), 2).about_a_peer);
  EXPECT_FALSE(failure_report(std::runtime_error("words"), 2).about_a_peer);
}

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  int in() const { return ends_[1]; }
  int out() const { return ends_[0]; }
  void close_in() {
    ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

TEST(FailureReport, GoesThroughItsPipe) {
  Pipe pipe;
  for (const bool about_a_peer : {false, true}) {
    const FailureReport sent{80, about_a_peer, 1234567890123, " two\nlines "};
    write_failure_report(pipe.in(), sent);
    const auto read = read_failure_report(pipe.out());
    ASSERT_TRUE(read);
    EXPECT_EQ(read->code, sent.code);
    EXPECT_EQ(read->about_a_peer, about_a_peer);
    EXPECT_EQ(read->time_ns, sent.time_ns);
    EXPECT_EQ(read->text, sent.text);
  }
  const std::int64_t before = monotonic_ns();
  write_failure_report(pipe.in(), failure_report(std::bad_alloc(), 0));
  const auto read = read_failure_report(pipe.out());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->code, 81);
  EXPECT_GE(read->time_ns, before);
  EXPECT_LE(read->time_ns, monotonic_ns());
  pipe.close_in();
  EXPECT_FALSE(read_failure_report(pipe.out())) << "ended without a report";
}

// One message of 4000 bytes at most, of which the first line is the code, the flag and the time.
TEST(FailureReport, IsCutToWhatAPipeTakes) {
  Pipe pipe;
  write_failure_report(pipe.in(), {1, false, 5, std::string(10000, 'x')});
  write_failure_report(pipe.in(), {2, false, 5, "after"});
  auto read = read_failure_report(pipe.out());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text, std::string(4000 - 6, 'x'));
  read = read_failure_report(pipe.out());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text, "after");
  EXPECT_EQ(::write(pipe.in(), "nonsense", 8), 8);
  EXPECT_FALSE(read_failure_report(pipe.out()));
}

}  // namespace
}  // namespace shoal::apps::failure_report_test
