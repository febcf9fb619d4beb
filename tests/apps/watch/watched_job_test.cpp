// Jobs of the fake trainer, watched and steered by the program itself from beside.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "apps/shoal/watch/run_socket.h"
#include "shoal/wire/address.h"
#include "shoal/wire/descriptor.h"
#include "tests/apps/program.h"
#include "tests/apps/watch/exposition_format.h"

namespace shoal::apps::testing::watched_job_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class WatchedJob : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("job.toml",
                 "[job]\nname = \"test\"\n[model]\nname = \"mlp-digits\"\n[data]\nsource = "
                 "\"digits\"\n[training]\nglobal_batch_sequences = 24\nsteps = 100000\n");
  }
  /// A job that ends only when it is asked to.
  std::unique_ptr<Program> start(std::vector<std::string> more,
                                 const std::map<std::string, std::string>& environment = {},
                                 const std::string& directory = "run") const {
    std::vector<std::string> words = {shoal_program(), "train", "job.toml", "--run-dir", directory};
    words.insert(words.end(), more.begin(), more.end());
    auto job = std::make_unique<Program>(words, folder.path(), environment);
    const auto nproc = std::find(more.begin(), more.end(), "--nproc");
    EXPECT_TRUE(trains(nproc == more.end() ? 1 : std::stoul(nproc[1]), directory));
    return job;
  }
  /// Waits until each of the ranks has completed a step. The fake ones do not wait for each other:
  /// one may be far ahead of another that has not begun.
  bool trains(std::size_t ranks, const std::string& directory = "run") const {
    return becomes(directory, [=](const Json& now) {
      return std::count_if(now["ranks"].begin(), now["ranks"].end(), [](const Json& rank) {
               return rank["step"] >= 2;
             }) == static_cast<std::ptrdiff_t>(ranks);
    });
  }
  Outcome shoal(std::vector<std::string> words) const {
    words.insert(words.begin(), shoal_program());
    return run(words, folder.path());
  }
  Json status(const std::string& directory = "run") const {
    const Outcome outcome = shoal({"status", directory, "--json"});
    return outcome.code == 0 ? Json::parse(outcome.out)
                             : Json{{"state", "none"}, {"step", -1}, {"ranks", Json::array()}};
  }
  /// Waits until the status is so.
  bool becomes(const std::string& directory, const std::function<bool(const Json&)>& is_so) const {
    for (int i = 0; i < 6000; ++i) {
      if (is_so(status(directory))) return true;
      std::this_thread::sleep_for(20ms);
    }
    return false;
  }
  /// Waits until another process has asked the job to stop or to save, which it has not done yet.
  bool is_asked_to(const std::string& command) const {
    if (command == "stop")
      return becomes("run", [](const Json& now) { return now["stopping"] == true; });
    // The job counts who asks it to save: this test, and the other one.
    for (int own = 1; own < 6000; ++own) {
      const auto answer = ask_run(folder.path() / "run", command, Deadline::in(10s));
      if (answer && Json::parse(*answer)["request"] > own) return true;
      std::this_thread::sleep_for(20ms);
    }
    return false;
  }
  int process_of(int rank) const {
    const std::string text = folder.read("run/rank-" + std::to_string(rank) + ".txt");
    std::smatch match;
    return std::regex_search(text, match, std::regex(" process (\\d+) ")) ? std::stoi(match[1]) : 0;
  }
  static void end(Program& job) {
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait().code, 143);
  }

  /// Ranks as processes, as threads, and one alone.
  const std::vector<std::vector<std::string>> kinds = {
      {"--nproc", "3"}, {"--nproc", "2", "--in-process"}, {}};
  Folder folder;
};

TEST_F(WatchedJob, ItsStatusIsShown) {
  for (const auto& kind : kinds) {
    const auto job = start(kind);
    const Json first = status();
    EXPECT_EQ(first["state"], "training");
    EXPECT_EQ(first["directory"], "run");
    EXPECT_EQ(first["total_steps"], 100000);
    EXPECT_EQ(first["process"], job->process()) << "the launcher, or the one process";
    EXPECT_EQ(first["stopping"], false);
    const std::size_t ranks = kind.empty() ? 1 : std::stoul(kind[1]);
    ASSERT_EQ(first["ranks"].size(), ranks);
    const bool threads = kind.size() != 2;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Json& line = first["ranks"][rank];
      EXPECT_EQ(line["rank"], rank);
      EXPECT_EQ(line["process"], process_of(threads ? 0 : static_cast<int>(rank)));
      EXPECT_EQ(line["state"], "running");
      EXPECT_GE(line["step"], 1);
      EXPECT_GE(line["age_s"], 0);
      EXPECT_GT(line["resident_bytes"], 1 << 20);
    }
    EXPECT_TRUE(becomes("run", [&](const Json& now) { return now["step"] > first["step"]; }));
    const Outcome text = shoal({"status", "run"});
    EXPECT_THAT(text.out, ContainsRegex("^run: training, step [0-9]+ of 100000 \\(0 %\\), "));
    EXPECT_THAT(text.out, HasSubstr(fmt::format("rank {} of {}  process ", ranks - 1, ranks)));
    end(*job);
    EXPECT_FALSE(folder.has("run/control"));
    std::filesystem::remove_all(folder.path() / "run");
  }
}

TEST_F(WatchedJob, IsStopped) {
  for (const auto& kind : kinds) {
    const auto job = start(kind);
    const Outcome stopped = shoal({"stop", "run"});
    EXPECT_EQ(stopped.code, 0) << stopped.err;
    EXPECT_THAT(stopped.out, ContainsRegex("^run stopped by SIGTERM; saved run/checkpoints/step-"));
    const Outcome outcome = job->wait();
    EXPECT_EQ(outcome.code, 143) << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("failed")));
    EXPECT_EQ(stopped.out, "run stopped by SIGTERM; saved run/checkpoints/step-" +
                               folder.read("run/saved-0") + ".\n");
    const Json after = status();
    EXPECT_EQ(after["state"], "stopped");
    EXPECT_EQ(after["code"], 143);
    EXPECT_EQ(after["total_steps"], 100000);
    for (const char* command : {"stop", "save", "diagnose"}) {
      const Outcome late = shoal({command, "run"});
      EXPECT_EQ(late.code, 66);
      EXPECT_THAT(late.err, HasSubstr("no job runs in run: the last one stopped by SIGTERM"));
    }
    std::filesystem::remove_all(folder.path() / "run");
  }
}

TEST_F(WatchedJob, SavesAndGoesOn) {
  for (const auto& kind : kinds) {
    const auto job = start(kind);
    // Two at once, and one after them.
    Program first({shoal_program(), "save", "run"}, folder.path());
    Program second({shoal_program(), "save", "run"}, folder.path());
    for (Program* save : {&first, &second}) {
      const Outcome outcome = save->wait();
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_THAT(outcome.out,
                  ContainsRegex("^saved run/checkpoints/step-[0-9]+; the run goes on.\n$"));
      const auto name = outcome.out.substr(6, outcome.out.find(';') - 6);
      EXPECT_TRUE(folder.has(name)) << name;
    }
    const std::int64_t before = status()["checkpoint_step"];
    EXPECT_EQ(shoal({"save", "run"}).code, 0);
    EXPECT_GT(status()["checkpoint_step"], before);
    EXPECT_EQ(status()["state"], "training");
    end(*job);
    std::filesystem::remove_all(folder.path() / "run");
  }
}

TEST_F(WatchedJob, ItsDiagnosisNamesAStoppedRankAndWhereTheOthersWait) {
  const auto job = start({"--nproc", "3", "--set", "job.description=meet"});
  const Outcome healthy = shoal({"diagnose", "run"});
  EXPECT_EQ(healthy.code, 0) << healthy.out << healthy.err;
  EXPECT_THAT(healthy.out, HasSubstr("The ranks go on: rank 0 was in step "));
  ASSERT_EQ(::kill(process_of(1), SIGSTOP), 0);
  ASSERT_TRUE(becomes("run", [](const Json& now) {
    return now["ranks"].size() == 3 && now["ranks"][1]["state"] == "stopped" &&
           now["ranks"][0]["age_s"] > 0.1;
  }));
  const Outcome stuck = shoal({"diagnose", "run"});
  EXPECT_EQ(stuck.code, 1);
  EXPECT_LT(stuck.seconds, 20);
  EXPECT_THAT(stuck.out, HasSubstr(fmt::format("rank 1 of 3 stands still: a signal has stopped it "
                                               "(kill -CONT {} lets it go on)\n",
                                               process_of(1))));
  EXPECT_THAT(stuck.out, ContainsRegex("waiting in #[0-9]+ all_reduce of 5 x f32 by sum: ranks 0, "
                                       "2 are inside it; rank 1 left no record\n"));
  // What needs all ranks waits for its time limit and says so; the job is as it was.
  const Outcome save = shoal({"save", "run", "--timeout", "0.3"});
  EXPECT_EQ(save.code, 201);
  EXPECT_THAT(save.err, HasSubstr("no checkpoint is complete after 0.3 s: run is training"));
  const Outcome stop = shoal({"stop", "run", "--timeout", "0.3"});
  EXPECT_EQ(stop.code, 201);
  EXPECT_THAT(stop.err, HasSubstr("run was asked to stop and is still there after 0.3 s"));
  EXPECT_EQ(status()["stopping"], true);
  ASSERT_EQ(::kill(process_of(1), SIGCONT), 0);
  EXPECT_EQ(job->wait().code, 143);
  EXPECT_FALSE(folder.has("run/logs/diagnose-rank-0.jsonl"));
}

TEST_F(WatchedJob, AProcessThatIsStoppedItselfIsNamedByTheSystem) {
  const auto job = start({"--nproc", "2"});
  job->signal(SIGSTOP);
  ASSERT_TRUE(becomes("run", [](const Json& now) { return now["state"] == "silent"; }));
  const std::string process = std::to_string(job->process());
  EXPECT_THAT(shoal({"status", "run"}).out,
              HasSubstr("It stands still: a signal has stopped process " + process));
  const Outcome diagnosis = shoal({"diagnose", "run"});
  EXPECT_EQ(diagnosis.code, 1);
  EXPECT_THAT(diagnosis.out, HasSubstr("process " + process + " of run stands still"));
  const Outcome stop = shoal({"stop", "run"});
  EXPECT_EQ(stop.code, 201);
  EXPECT_THAT(stop.err, HasSubstr("does not answer, for a signal has stopped it"));
  job->signal(SIGCONT);
  ASSERT_TRUE(becomes("run", [](const Json& now) { return now["state"] != "silent"; }));
  EXPECT_EQ(status()["state"], "training") << "nobody waits for the stop any more";
  end(*job);
}

TEST_F(WatchedJob, StrangersDoNotDisturbIt) {
  const auto job = start({"--nproc", "2"});
  const std::string directory = folder.path() / "run";
  const auto sent = [&](const std::string& bytes) {
    return ask_run(directory, bytes, Deadline::in(10s)).value_or("");
  };
  EXPECT_THAT(sent("\xff\xfe"), HasSubstr("the requests are"));
  EXPECT_THAT(sent(std::string(5000, '\0')), HasSubstr("too long"));
  EXPECT_THAT(sent("GET / HTTP/1.1\r"), HasSubstr("the requests are"));
  EXPECT_THAT(sent("stop please"), HasSubstr("the requests are"));
  EXPECT_EQ(status()["state"], "training");
  EXPECT_EQ(status()["stopping"], false);
  end(*job);
}

TEST_F(WatchedJob, ASocketOfAKilledLauncherIsNoObstacle) {
  const auto first = start({"--nproc", "2"});
  first->signal(SIGKILL);
  first->wait();
  EXPECT_TRUE(folder.has("run/control"));
  EXPECT_TRUE(becomes("run", [](const Json& now) { return now["state"] == "killed"; }));
  EXPECT_THAT(shoal({"stop", "run"}).err, HasSubstr("no job runs in run: the last one was killed"));
  const auto second = start({"--nproc", "2"});
  EXPECT_EQ(status()["process"], second->process());
  end(*second);
}

TEST_F(WatchedJob, AJobThatItsLauncherStartsAgainIsNotWaitedFor) {
  auto job = start({"--nproc", "2", "--set", "job.description=meet"});
  for (const char* command : {"stop", "save"}) {
    // With one rank that stands still the job does not what it is asked.
    ASSERT_EQ(::kill(process_of(1), SIGSTOP), 0);
    ASSERT_TRUE(becomes("run", [](const Json& now) {
      return now["ranks"].size() == 2 && now["ranks"][0]["age_s"] > 0.2;
    }));
    Program asking({shoal_program(), command, "run"}, folder.path());
    ASSERT_TRUE(is_asked_to(command));
    asking.signal(SIGSTOP);
    job->signal(SIGKILL);
    job->wait();
    std::filesystem::remove(folder.path() / "run/rank-1.txt");
    job = start({"--nproc", "2", "--set", "job.description=meet"});
    asking.signal(SIGCONT);
    const Outcome outcome = asking.wait();
    EXPECT_EQ(outcome.code, 1) << command << outcome.err;
    EXPECT_THAT(outcome.err,
                HasSubstr(fmt::format("its launcher has started it again as process {}; its newest "
                                      "checkpoint is ",
                                      job->process())));
  }
  end(*job);
}

TEST_F(WatchedJob, OnAnotherHostItIsNotWaitedFor) {
  folder.write("run/lock", "1\nelsewhere\n");
  const wire::Descriptor lock(::open((folder.path() / "run/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  for (const char* command : {"stop", "save", "diagnose"}) {
    const Outcome outcome = shoal({command, "run"});
    EXPECT_EQ(outcome.code, 201);
    EXPECT_THAT(outcome.err, HasSubstr("process 1 on elsewhere uses run and does not answer here"));
    EXPECT_LT(outcome.seconds, 2);
  }
  EXPECT_THAT(shoal({"train", "job.toml", "--run-dir", "run"}).err,
              HasSubstr("run is in use by another job (process 1 on elsewhere)"));
}

TEST_F(WatchedJob, ItsDirectoryMayHaveALongPath) {
  const std::string directory = std::string(120, 'a') + "/" + std::string(120, 'b');
  const auto job = start({"--nproc", "2"}, {}, directory);
  EXPECT_EQ(shoal({"save", directory}).code, 0);
  EXPECT_EQ(shoal({"stop", (folder.path() / directory).string()}).code, 0);
  EXPECT_EQ(job->wait().code, 143);
}

TEST_F(WatchedJob, TheDirectoryNeedNotBeNamed) {
  for (const char* command : {"status", "top", "stop", "save", "diagnose"}) {
    const Outcome none = shoal({command});
    EXPECT_EQ(none.code, 66) << command;
    EXPECT_THAT(none.err, HasSubstr("there is no run directory below ./runs"));
    EXPECT_THAT(shoal({command, "nowhere"}).err, HasSubstr("nowhere is no run directory"));
  }
  EXPECT_EQ(shoal({"train", "job.toml", "--set", "training.steps=3"}).code, 0);
  EXPECT_THAT(shoal({"status"}).out, HasSubstr("runs/test: finished, step 0 of 3 (0 %)\n"));
  for (const char* seconds : {"0", "1e10"})
    EXPECT_EQ(shoal({"stop", "x", "--timeout", seconds}).code, 2) << seconds;
}

TEST_F(WatchedJob, ItsFailureIsRemembered) {
  const Outcome outcome =
      shoal({"train", "job.toml", "--run-dir", "run", "--nproc", "3", "--set", "debug.fault=error",
             "--set", "debug.fault_step=2", "--set", "debug.fault_rank=1"});
  EXPECT_EQ(outcome.code, 80);
  const Json after = status();
  EXPECT_EQ(after["state"], "failed");
  EXPECT_EQ(after["code"], 80);
  EXPECT_EQ(after["cause"], "rank 1 of 3 failed in step 2: [fake] the loss is nan");
  EXPECT_EQ(shoal({"train", "job.toml", "--run-dir", "run", "--set", "debug.fault=error", "--set",
                   "debug.fault_step=2"})
                .code,
            80);
  EXPECT_EQ(status()["cause"], "rank 0 of 1 failed in step 2: [fake] the loss is nan");
}

TEST_F(WatchedJob, UnderAnotherLauncherRank0Answers) {
  const auto job = start({}, {{"TORCHELASTIC_RUN_ID", "none"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"},
                              {"RANK", "0"},
                              {"LOCAL_RANK", "0"}});
  const Outcome text = shoal({"status", "run"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("rank 0 of 2  process "), Not(HasSubstr("rank 1 of 2")),
                              HasSubstr("torchrun has started the ranks: rank 0 answers")));
  EXPECT_THAT(shoal({"diagnose", "run"}).out, HasSubstr("this is what rank 0 knows"));
  EXPECT_EQ(shoal({"stop", "run"}).code, 0);
  EXPECT_EQ(job->wait().code, 143);
}

/// What a server on loopback answers to `request`.
std::string http(const wire::Endpoint& to, const std::string& request) {
  const wire::Descriptor socket = wire::connect_to(to, Deadline::in(10s));
  ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string text;
  char buffer[4096];
  for (;;) {
    pollfd ready{socket.get(), POLLIN, 0};
    if (::poll(&ready, 1, 10000) != 1) return text;
    const ssize_t length = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (length <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(length));
  }
}

TEST_F(WatchedJob, PrometheusReadsIt) {
  for (const auto& kind : kinds) {
    // The system chooses a port, and the job says which; the console goes to a file here.
    std::string words = shoal_program() +
                        " train job.toml --run-dir run --set "
                        "metrics.prometheus=127.0.0.1:0";
    for (const std::string& word : kind) words += " " + word;
    Program job({"/bin/sh", "-c", "exec " + words + " >console"}, folder.path());
    ASSERT_TRUE(trains(kind.empty() ? 1 : std::stoul(kind[1])));
    std::smatch place;
    const std::string console = folder.read("console");
    ASSERT_TRUE(std::regex_search(console, place,
                                  std::regex("Prometheus: http://127.0.0.1:(\\d+)/metrics\n")));
    const wire::Endpoint endpoint{"127.0.0.1", static_cast<std::uint16_t>(std::stoi(place[1]))};
    const std::string answer = http(endpoint, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n"));
    const Exposition page(answer.substr(answer.find("\r\n\r\n") + 4));
    EXPECT_EQ(page.error(), "");
    EXPECT_EQ(page.samples().at("shoal_planned_steps"), 100000);
    EXPECT_EQ(page.samples().at("shoal_phase{phase=\"training\"}"), 1);
    EXPECT_GE(page.samples().at("shoal_rank_step{rank=\"0\"}"), 2);
    EXPECT_THAT(http(endpoint, "GET / HTTP/1.1\r\n\r\n"), HasSubstr("404 Not Found"));
    EXPECT_THAT(http(endpoint, "nonsense\r\n\r\n"), HasSubstr("400 Bad Request"));
    end(job);
    std::filesystem::remove_all(folder.path() / "run");
  }
}

TEST_F(WatchedJob, APlaceThatIsTakenIsRefusedBeforeRanksStart) {
  const wire::Descriptor taken = wire::listen_on("127.0.0.1", {0, 0});
  const std::string place = wire::local_endpoint(taken.get()).text();
  const Outcome outcome = shoal({"train", "job.toml", "--run-dir", "run", "--nproc", "2", "--set",
                                 "metrics.prometheus=" + place});
  EXPECT_EQ(outcome.code, 81) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[job] metrics.prometheus = \"" + place + "\": no port of "));
  EXPECT_FALSE(folder.has("run/rank-0.txt"));
  EXPECT_EQ(status()["state"], "failed");
  EXPECT_EQ(status()["code"], 81);
}

TEST_F(WatchedJob, TopPrintsOnceWhereThereIsNoTerminal) {
  const auto job = start({"--nproc", "2"});
  const Outcome outcome = shoal({"top", "run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("run: training, step "));
  EXPECT_THAT(outcome.out, HasSubstr("·  rank 1 of 2  process "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  end(*job);
}

/// Runs `shoal top run` on a terminal; `key` is pressed once its screen stands for the second time.
std::pair<std::string, int> top_on_a_terminal(const std::string& folder, char key) {
  int terminal = -1;
  const winsize size{.ws_row = 20, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t process = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (process == 0) {
    const std::string program = shoal_program();
    if (::chdir(folder.c_str()) == 0)
      ::execl(program.c_str(), program.c_str(), "top", "run", nullptr);
    ::_exit(127);
  }
  std::string text;
  char buffer[4096];
  bool pressed = false;
  for (;;) {
    // The end of the program is an error of the terminal.
    const ssize_t length = ::read(terminal, buffer, sizeof buffer);
    if (length <= 0) break;
    text.append(buffer, static_cast<std::size_t>(length));
    const auto first = text.find("q ends this, not the run");
    if (pressed || first == std::string::npos || text.find("q ends", first + 1) == text.npos)
      continue;
    pressed = ::write(terminal, &key, 1) == 1;
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(process, &status, 0);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

TEST_F(WatchedJob, TopDrawsAgainUntilAKeyEndsIt) {
  const auto job = start({"--nproc", "2"});
  for (const char key : {'q', '\x03'}) {
    const auto [text, code] = top_on_a_terminal(folder.path(), key);
    EXPECT_EQ(code, 0) << text;
    EXPECT_EQ(text.find("\x1b[?1049h"), 0u) << "the other screen";
    EXPECT_THAT(text, ::testing::EndsWith("\x1b[?25h\x1b[?1049l")) << "given back";
    EXPECT_THAT(text, HasSubstr("rank 1 of 2"));
  }
  EXPECT_EQ(status()["state"], "training") << "Ctrl-C ended the picture, not the job";
  end(*job);
}

}  // namespace
}  // namespace shoal::apps::testing::watched_job_test
