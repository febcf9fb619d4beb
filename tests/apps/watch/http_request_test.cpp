#include "apps/shoal/watch/http_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace shoal::apps::http_request_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The answer to a whole request; "more" where it may go on.
std::string answer(const std::string& received) {
  return answer_metrics_request(received, [] { return "a 1\n"; }).value_or("more");
}

TEST(HttpRequest, OfTheOnePageIsAnswered) {
  const std::string expected =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: 4\r\nConnection: close\r\n\r\na 1\n";
  EXPECT_EQ(answer("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"), expected);
  EXPECT_EQ(answer("GET /metrics HTTP/1.0\r\n\r\n"), expected);
  EXPECT_EQ(answer("GET /metrics?name=x HTTP/1.1\r\n\r\nbody"), expected);
}

TEST(HttpRequest, WaitsForTheEndOfItsHead) {
  const std::string whole = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_EQ(answer(whole.substr(0, bytes)), "more") << bytes;
  EXPECT_NE(answer(whole), "more");
}

TEST(HttpRequest, OfAnythingElseIsRefused) {
  const auto refused = [](const std::string& line, const char* status) {
    const std::string text = answer(line + "\r\n\r\n");
    EXPECT_THAT(text, StartsWith(std::string("HTTP/1.1 ") + status + "\r\n")) << line;
    EXPECT_THAT(text, HasSubstr("Connection: close\r\n"));
    EXPECT_THAT(text, EndsWith(std::string("\r\n\r\n") + status + "\n"));
  };
  for (const char* line : {"GET / HTTP/1.1", "GET /metrics/ HTTP/1.1", "GET /metricsx HTTP/1.1",
                           "GET //metrics HTTP/1.1", "POST /x HTTP/1.1"})
    refused(line, "404 Not Found");
  for (const char* line : {"POST /metrics HTTP/1.1", "HEAD /metrics HTTP/1.1"})
    refused(line, "405 Method Not Allowed");
  for (const char* line : {"GET /metrics HTTP/2.0", "GET /metrics HTTP/0.9"})
    refused(line, "505 HTTP Version Not Supported");
  for (const char* line :
       {"", "GET", "GET /metrics", "GET  /metrics HTTP/1.1", "GET /metrics HTTP/1.1 x",
        "get /metrics HTTP/1.1", "GET metrics HTTP/1.1", "GET /metrics http/1.1",
        "\x16\x03\x01\x02", "GET /m\x01 HTTP/1.1", "GET /m\xc3\xa4 HTTP/1.1", " /metrics HTTP/1.1"})
    refused(line, "400 Bad Request");
  EXPECT_THAT(answer("POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("\r\nAllow: GET\r\n"));
}

TEST(HttpRequest, MayBeOfEightKiB) {
  const std::string line = "GET /metrics HTTP/1.1\r\nX: ";
  EXPECT_THAT(answer(line + std::string(kLongestHead - line.size() - 4, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(answer(line + std::string(kLongestHead - line.size() - 1, 'x')), "more");
  for (const std::size_t more : {0U, 1U, 100000U}) {
    EXPECT_THAT(answer(line + std::string(kLongestHead - line.size() + more, 'x')),
                StartsWith("HTTP/1.1 431 Request Header Fields Too Large\r\n"));
  }
}

}  // namespace
}  // namespace shoal::apps::http_request_test
