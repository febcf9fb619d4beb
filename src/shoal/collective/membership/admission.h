#pragma once

#include <optional>
#include <string>

#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/view.h"
#include "shoal/wire/join_token.h"

namespace shoal::collective::membership {

/// Reads what a joiner shows to a view. A token that has expired in a view before is expired,
/// whatever `now` says.
wire::TokenReading read(const Admission& admission, const std::string& token, wire::TokenTime now);

/// Returns why a joiner is not admitted, and what to do; nothing where it may join.
std::optional<JoinRefused> refusal(const Admission& admission, const std::string& token,
                                   const wire::TokenReading& reading);

/// Uses a token up for a member of the view that has this admission, and forgets those that have
/// expired. Returns false where another one has used it, and where no more can be remembered.
bool use_up(Admission& admission, const wire::TokenReading& reading, wire::TokenTime now);

}  // namespace shoal::collective::membership
