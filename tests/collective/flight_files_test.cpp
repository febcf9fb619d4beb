// What is left of a failed run: a file of every rank that could write, and one of all with who is
// to blame.
#include "shoal/collective/flight/flight_files.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/collective/on_hosts.h"

namespace shoal::collective::flight_files_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class FlightFiles : public testing::Test {
 protected:
  FlightFiles()
      : directory(fs::temp_directory_path() /
                  fmt::format("shoal-flight-{}-{}", ::getpid(),
                              testing::UnitTest::GetInstance()->random_seed())) {
    fs::create_directories(directory);
  }
  ~FlightFiles() override { fs::remove_all(directory); }

  std::vector<json> lines(const std::string& file) const {
    std::vector<json> result;
    std::ifstream text(directory / file);
    for (std::string line; std::getline(text, line);) result.push_back(json::parse(line));
    return result;
  }
  std::vector<std::string> verdicts() const {
    std::vector<std::string> result;
    for (const json& line : lines("flight.jsonl"))
      if (line["record"] == "verdict") result.push_back(line["text"]);
    return result;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(directory))
      result.push_back(entry.path().filename());
    std::sort(result.begin(), result.end());
    return result;
  }

  fs::path directory;
};

/// A book of one group in which `rank` has done `complete` calls and, if `inside`, has begun one
/// more.
std::shared_ptr<FlightBook> book_of(int rank, const std::vector<int>& members,
                                    std::uint64_t complete, bool inside) {
  auto book = std::make_shared<FlightBook>();
  std::vector<FlightEntry> entries;
  for (std::uint64_t s = 1; s <= complete + (inside ? 1 : 0); ++s) {
    const auto began = Clock::now() - std::chrono::milliseconds(100);
    entries.push_back(
        {rank, s, fmt::format("all_gather of {} x f32", s), began,
         s <= complete ? began + std::chrono::microseconds(250) : Clock::time_point{}});
  }
  book->add("world", members, [entries] { return entries; });
  return book;
}

TEST_F(FlightFiles, SayWhoNeverEnteredWhoIsInsideAndWhoIsSilent) {
  const Error cause = Error(ErrorKind::kTimeout, "all_gather", "not \"complete\"").at(0, 4).from(3);
  for (const int rank : {0, 1})
    write_flight(directory, {"run", rank, 4}, *book_of(rank, {0, 1, 2, 3}, 411, true), cause);
  write_flight(directory, {"run", 3, 4}, *book_of(3, {0, 1, 2, 3}, 411, false), cause);
  EXPECT_EQ(names(), (std::vector<std::string>{"flight-rank-0.jsonl", "flight-rank-1.jsonl",
                                               "flight-rank-3.jsonl", "flight.jsonl"}));
  EXPECT_EQ(verdicts(),
            (std::vector<std::string>{"#412 all_gather of 412 x f32: rank 3 never entered it (its "
                                      "last was #411 all_gather of 411 x f32); "
                                      "ranks 0, 1 are inside it; rank 2 left no record"}));
  const auto own = lines("flight-rank-0.jsonl");
  const auto all = lines("flight.jsonl");
  ASSERT_EQ(own.size(), 1u + 412u);
  EXPECT_EQ(own[0]["error"], cause.what());
  EXPECT_EQ(own[0]["kind"], "timeout");
  EXPECT_EQ(own[1]["members"], (json{0, 1, 2, 3}));
  EXPECT_NEAR(own[1]["took_us"].get<double>(), 250, 1e-3);
  EXPECT_NEAR(own[1]["began"].get<double>(), own[0]["written"].get<double>() - 0.1, 10);
  EXPECT_TRUE(own[412]["took_us"].is_null());
  EXPECT_EQ(all.size(), 3u + 412u + 412u + 411u + 1u) << "each line once";
}

TEST_F(FlightFiles, OtherRunsAndNoiseAreLeftOut) {
  write_flight(directory, {"before", 1, 2}, *book_of(1, {0, 1}, 5, true),
               Error(ErrorKind::kTimeout, "x", "y"));
  std::ofstream(directory / "flight-rank-7.jsonl")
      << "noise\n[1]\n{\"record\":7}\n{\"record\":\"call\",\"run\":\"now\",\"rank\":\"x\"}\n{"
         "\"run\":\"now\"}\n\n{";
  write_flight(directory, {"now", 0, 2}, *book_of(0, {0, 1}, 3, false),
               Error(ErrorKind::kInternal, "x", std::string("\xff not text")));
  EXPECT_EQ(lines("flight.jsonl").size(), 4u);
  EXPECT_TRUE(verdicts().empty()) << "nobody waits in a collective";
  forget_flight(directory, 0), forget_flight(directory, 1), forget_flight(directory, 7),
      forget_flight(directory, 8);
  EXPECT_TRUE(names().empty());
}

TEST_F(FlightFiles, ManyRanksWriteAtOnce) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&, rank] {
      write_flight(directory, {"run", rank, 8}, *book_of(rank, {0, 1, 2, 3, 4, 5, 6, 7}, 20, true),
                   Error(ErrorKind::kTimeout, "x", "y"));
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(lines("flight.jsonl").size(), 8u * 22u + 1u);
  EXPECT_EQ(verdicts()[0],
            "#21 all_gather of 21 x f32: ranks 0, 1, 2, 3, 4, 5, 6, 7 are inside it");
  EXPECT_EQ(names().size(), 9u) << "nothing is left beside them";
}

TEST_F(FlightFiles, WhereNothingCanBeWrittenIsAnError) {
  try {
    write_flight("/proc/nowhere", {"run", 0, 1}, FlightBook(),
                 Error(ErrorKind::kTimeout, "x", "y"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutput);
  }
}

TEST_F(FlightFiles, OnlyRank0ForgetsTheFileOfAll) {
  write_flight(directory, {"run", 1, 2}, *book_of(1, {0, 1}, 1, false),
               Error(ErrorKind::kTimeout, "x", "y"));
  forget_flight(directory, 1);
  EXPECT_EQ(names(), std::vector<std::string>{"flight.jsonl"});
  forget_flight(directory, 0);
  EXPECT_TRUE(names().empty());
}

/// A line of rank `rank` for a call of "group", whose members are ranks 0 to 2.
json call_line(int rank, int sequence, bool complete) {
  return {{"record", "call"},
          {"run", "r"},
          {"group", "group"},
          {"members", {0, 1, 2}},
          {"rank", rank},
          {"sequence", sequence},
          {"call", fmt::format("call {}", sequence)},
          {"began", 1.5},
          {"took_us", complete ? json(10) : json(nullptr)}};
}

std::string merged(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + "\n";
  return merge_flights({text}, "r");
}

std::string verdict_of(const std::vector<json>& lines) {
  std::istringstream text(merged(lines));
  std::string result;
  for (std::string line; std::getline(text, line);) {
    const json one = json::parse(line);
    if (one["record"] == "verdict") result += one["text"].get<std::string>();
  }
  return result;
}

TEST(MergeFlights, FindsTheFirstCallThatIsStuck) {
  EXPECT_EQ(verdict_of({call_line(0, 1, true), call_line(1, 1, true), call_line(2, 1, true)}), "");
  // Rank 1 has come no further than 1, and all others are past it.
  EXPECT_EQ(verdict_of({call_line(0, 1, true), call_line(0, 2, true), call_line(1, 1, true),
                        call_line(2, 2, true)}),
            "#2 call 2: rank 1 never entered it (its last was #1 call 1)");
  // The oldest that anybody is inside of, and not a later one.
  EXPECT_EQ(
      verdict_of({call_line(0, 3, false), call_line(0, 4, false), call_line(1, 3, true),
                  call_line(1, 4, false), call_line(2, 3, true), call_line(2, 4, false)}),
      "#3 call 3: rank 0 is inside it; rank 1 has done its part and waits in #4 call 4; rank 2 "
      "has done its part and waits in #4 call 4");
  // One is inside of 5, and another has not even entered 4.
  EXPECT_EQ(verdict_of({call_line(0, 5, false), call_line(1, 3, true), call_line(2, 4, true)}),
            "#4 call 4: rank 1 never entered it (its last was #3 call 3); rank 0 has done its part "
            "and waits in #5 call 5");
}

// Two ranks of a node have recorded the same call: who saw it complete saw it last.
TEST(MergeFlights, ACallThatIsCompleteAnywhereIsComplete) {
  for (const bool first : {false, true}) {
    EXPECT_EQ(verdict_of({call_line(0, 1, first), call_line(0, 1, !first), call_line(1, 1, true),
                          call_line(2, 1, true)}),
              "");
  }
  EXPECT_EQ(verdict_of({call_line(0, 1, false), call_line(0, 1, false), call_line(1, 1, true)}),
            "#1 call 1: rank 0 is inside it; rank 2 left no record");
}

TEST(MergeFlights, LeavesOutLinesThatAreNotWhatTheySeem) {
  EXPECT_NE(merged({call_line(0, 1, true)}), "");
  const auto with = [](const char* key, const json& value) {
    json line = call_line(0, 1, true);
    line[key] = value;
    return line;
  };
  const json wrong[] = {
      with("rank", "0"),         with("rank", 0.5),
      with("sequence", -1),      with("sequence", "1"),
      with("call", 7),           with("group", 7),
      with("members", 0),        with("members", json::array({0, "1"})),
      with("record", "verdict"), with("record", "rank"),
      with("run", "another"),    with("run", 5),
  };
  for (const json& line : wrong) EXPECT_EQ(merged({line}), "") << line.dump();
  const json rank{{"record", "rank"}, {"run", "r"}, {"rank", 0}, {"written", 1.5}};
  EXPECT_NE(merged({rank}), "");
  for (const char* key : {"rank", "written"}) {
    json line = rank;
    line[key] = "1";
    EXPECT_EQ(merged({line}), "") << key;
  }
}

// Every rank keeps a book of a real group and its split; one never comes to the last collective.
// `inside` counts the others there, and none of them gives up before all are.
void fly(Communicator& c, int absent, std::atomic<int>& inside,
         const std::function<void(const Error&)>& write) {
  std::vector<float> x(5000, 1);
  const auto start = [&](Communicator& on) {
    return on.start({.kind = Kind::kAllReduce,
                     .type = ElementType::kF32,
                     .buffer = {x.data(), x.data(), x.size()}});
  };
  {
    const auto half = c.split(c.rank() % 2, 0);
    half->wait(start(*half), soon());
  }
  for (int i = 0; i < 100; ++i) c.wait(start(c), soon());
  try {
    // Waits for a message that nobody sends.
    if (c.rank() == absent) {
      c.run({.kind = Kind::kReceive,
             .buffer = {nullptr, x.data(), 1},
             .peer = (absent + 1) % c.size(),
             .tag = 9},
            soon());
    }
    const Handle handle = start(c);
    for (++inside; inside < c.size() - 1;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    c.wait(handle, Deadline::in(std::chrono::milliseconds(300)));
  } catch (const Error& error) {
    write(error);
    throw;
  }
}

TEST_F(FlightFiles, GroupsOfOneHostAreReadByEveryRank) {
  const auto control = std::make_shared<wire::SharedSegment>(
      wire::SharedSegment::create("control", HostWorld::control_bytes()));
  std::vector<std::thread> threads;
  std::atomic<int> inside = 0;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto book = std::make_shared<FlightBook>();
      HostCommunicator c(std::make_shared<HostWorld>(rank, 4, control),
                         {.timeout = std::chrono::seconds(60), .flight = book, .world_ranks = {}});
      try {
        fly(c, 2, inside, [&](const Error& error) {
          if (rank != 2) write_flight(directory, {"run", rank, 4}, *book, error);
        });
      } catch (const Error&) {
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const auto words = verdicts();
  ASSERT_FALSE(words.empty());
  EXPECT_THAT(words[0],
              HasSubstr("all_reduce of 5000 x f32 by sum: rank 2 never entered it (its last was #"))
      << "though rank 2 wrote nothing";
  EXPECT_THAT(words[0], HasSubstr("ranks 0, 1, 3 are inside it"));
  std::set<std::string> groups;
  for (const json& line : lines("flight-rank-0.jsonl"))
    if (line["record"] == "call") groups.insert(line["group"]);
  EXPECT_EQ(groups.size(), 2u) << "the world, and the half of it that is gone by now";
}

}  // namespace
}  // namespace shoal::collective::flight_files_test
