#include "shoal/collective/membership/admission.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace shoal::collective::membership {
namespace {

bool is_used(const Admission& admission, const wire::TokenNonce& nonce) {
  return std::any_of(admission.used.begin(), admission.used.end(),
                     [&](const Admission::Used& used) { return used.nonce == nonce; });
}

std::string date(std::int64_t seconds) {
  constexpr std::int64_t kEndOf9999 = 253'402'300'799;
  const auto time = static_cast<std::time_t>(std::clamp<std::int64_t>(seconds, 0, kEndOf9999));
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(time));
}

}  // namespace

wire::TokenReading read(const Admission& admission, const std::string& token, wire::TokenTime now) {
  if (!admission.by_token) return {};
  wire::TokenReading reading = wire::read_join_token(admission.key, admission.cluster, token, now);
  if (reading.verdict == wire::TokenVerdict::kGood &&
      static_cast<std::uint64_t>(reading.expires_s) <= admission.clock_s)
    reading.verdict = wire::TokenVerdict::kExpired;
  return reading;
}

std::optional<JoinRefused> refusal(const Admission& admission, const std::string& token,
                                   const wire::TokenReading& reading) {
  if (!admission.by_token) return std::nullopt;
  if (token.empty()) {
    return JoinRefused{fmt::format("members of cluster \"{}\" join with a token, and none is shown",
                                   admission.cluster),
                       "Have one issued, and give it as `token`."};
  }
  switch (reading.verdict) {
    case wire::TokenVerdict::kForged:
      return JoinRefused{"the join token is forged: it is not as the secret of this group signs it",
                         "Copy it whole, or have one issued with the secret of this group."};
    case wire::TokenVerdict::kOtherCluster:
      return JoinRefused{
          fmt::format("the join token is of another cluster: it is for \"{}\", and this is \"{}\"",
                      reading.cluster, admission.cluster),
          "Have one issued for this cluster."};
    case wire::TokenVerdict::kExpired:
      return JoinRefused{
          fmt::format("the join token is expired: it was good until {}", date(reading.expires_s)),
          "Have another one issued; are the clocks of the hosts right?"};
    case wire::TokenVerdict::kGood:
      break;
  }
  if (is_used(admission, reading.nonce)) {
    return JoinRefused{"the join token was used before: it has admitted a member",
                       "A token admits one member, once: have one issued for each start."};
  }
  if (admission.used.size() >= Admission::kMostUsed) {
    return JoinRefused{
        fmt::format("{} join tokens are used and have not expired", admission.used.size()),
        "Have tokens issued that expire sooner, or wait until some of these have."};
  }
  return std::nullopt;
}

bool use_up(Admission& admission, const wire::TokenReading& reading, wire::TokenTime now) {
  if (!admission.by_token) return true;
  if (is_used(admission, reading.nonce)) return false;
  const auto now_s =
      static_cast<std::uint64_t>(std::max<std::int64_t>(wire::seconds_since_1970(now), 0));
  admission.clock_s = std::max(admission.clock_s, now_s);
  std::erase_if(admission.used,
                [&](const Admission::Used& used) { return used.expires_s <= admission.clock_s; });
  if (admission.used.size() >= Admission::kMostUsed) return false;
  admission.used.push_back(
      {.nonce = reading.nonce, .expires_s = static_cast<std::uint64_t>(reading.expires_s)});
  return true;
}

}  // namespace shoal::collective::membership
