#include <array>

#include "apps/shoal/watch/http_request.h"
#include "apps/shoal/watch/job_requests.h"
#include "apps/shoal/watch/job_status.h"
#include "apps/shoal/watch/last_run.h"
#include "tests/fuzz/fuzz.h"

// What strangers may send to a job that is watched, what may answer in its place, and the file that
// tells of its end.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string text = fuzz::text_of(data, size);
  static train::RunLine run;
  static std::array<train::RankLine, 2> ranks;
  const apps::JobRequests requests({&run, ranks}, "");
  if (const auto answer = requests.answer(text))
    fuzz::must(answer->ends_with("}\n"), "an answer is an object and a line end");
  const auto page = apps::answer_metrics_request(text, [] { return std::string("a 1\n"); });
  if (page) fuzz::must(page->starts_with("HTTP/1.1 "), "an answer is one of HTTP");
  fuzz::accepted([&] {
    const std::string status = apps::to_json(apps::parse_job_status(text));
    fuzz::must(apps::to_json(apps::parse_job_status(status)) == status,
               "a status is read as it was written");
  });
  if (const auto last = apps::parse_last_run(text)) {
    const auto again = apps::parse_last_run(apps::to_json(*last));
    fuzz::must(again && again->code == last->code && again->ended == last->ended,
               "an ending is read as it was written");
  }
  return 0;
}
