#include <algorithm>
#include <chrono>

#include "shoal/collective/membership/chain.h"
#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/membership.h"
#include "tests/collective/membership/some_members.h"
#include "tests/fuzz/fuzz.h"

// What members write to each other and to an etcd: the bytes, and what a keeper makes of the
// letter.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  using namespace shoal::collective::membership;
  const auto bytes = std::as_bytes(std::span(data, size));

  View view;
  if (fuzz::accepted([&] { view = decode_view(bytes); }))
    fuzz::must(decode_view(canonical_bytes(view)) == view, "a view reads as it is written");

  ChainEntry entry;
  if (fuzz::accepted([&] { entry = decode_chain_entry(bytes); })) {
    const wire::Bytes again = encode(entry);
    fuzz::must(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
               "an entry of the chain has one encoding");
  }

  Letter letter;
  if (!fuzz::accepted([&] { letter = decode_letter(bytes); })) return 0;
  const wire::Bytes again = encode(letter);
  fuzz::must(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
             "a letter has one encoding");
  const auto now = Clock::time_point(std::chrono::hours(1));
  Membership keeper(id_of(1), first_view(3), {}, now);
  letter.to = id_of(1);
  fuzz::accepted([&] {
    keeper.on(Received{letter}, now);
    keeper.on(StepReady{}, now);
    keeper.on(Tick{}, now + std::chrono::seconds(5));
    keeper.on(Received{letter}, now + std::chrono::seconds(6));
    keeper.on(Tick{}, now + std::chrono::seconds(9));
  });
  return 0;
}
