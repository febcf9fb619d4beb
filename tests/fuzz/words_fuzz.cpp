#include <algorithm>
#include <cstring>

#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/flight/flight_recorder.h"
#include "shoal/collective/tcp/tcp_call.h"
#include "shoal/wire/address.h"
#include "shoal/wire/error_bytes.h"
#include "tests/fuzz/fuzz.h"

// What a peer says of its failure and of its call, and addresses, which come from a store, a file
// or a launcher.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string text = fuzz::text_of(data, size);
  const auto bytes = std::as_bytes(std::span(data, size));

  const Error heard = wire::decode_error(bytes);
  const Error again = wire::decode_error(wire::encode(heard));
  fuzz::must(std::string_view(again.what()) == heard.what() && again.kind() == heard.kind(),
             "an error survives the way to a peer");

  std::byte front[collective::TcpCall::kBytes] = {};
  std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof front), front);
  fuzz::must(!collective::TcpCall::read(front).text().empty(), "every call has words");

  if (const auto standing = collective::Standing::unpack(bytes))
    fuzz::must(!standing->against(size).empty(), "every standing has words");

  wire::Endpoint endpoint;
  if (fuzz::accepted([&] { endpoint = wire::parse_endpoint(text); }))
    fuzz::must(wire::parse_endpoint(endpoint.text()) == endpoint,
               "an endpoint reads as it is written");
  wire::PortRange ports;
  if (fuzz::accepted([&] { ports = wire::parse_port_range(text); }))
    fuzz::must(ports.first <= ports.last, "a range has an order");
  fuzz::accepted([&] { collective::Choice({0, 0, 1}, {}, text); });
  return 0;
}
