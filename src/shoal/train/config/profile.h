#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::train {

/// One kind of work in a profile: means over ranks and steps.
struct ProfileRow {
  std::string name;
  double seconds = 0;  ///< of a step; without what other rows count inside
  double flops = 0;    ///< of a step and rank
  double bytes = 0;    ///< likewise
};

/// Says where a traced step went. Every nanosecond of a step counts in one row: that of the
/// innermost span at that time. Time that lies in no span but the step's own is `uncovered`.
struct Profile {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  int ranks = 0;
  int steps = 0;
  int threads = 1;
  double step_s = 0;             ///< mean over ranks and steps
  std::vector<ProfileRow> rows;  ///< the longest first
  double uncovered_s = 0;
  /// Time of a step in which at least one operation between ranks was in flight, and the part of it
  /// in which the rank computed meanwhile.
  double in_flight_s = 0;
  double hidden_s = 0;
  std::vector<ProfileRow> outside;  ///< between the steps: evaluation, checkpoints, report
  std::vector<ProfileRow> units;    ///< "forward blocks.0": with all that lies inside
  double peak_flops = 0;            ///< of a rank, mean; 0: not known
  double peak_bytes_per_s = 0;
  double clock_error_us = 0;
  std::int64_t dropped = 0;  ///< spans that found no room: their time counts where they lay

  double rows_s() const;  ///< sum of `rows`
};

/// Sums up a trace that `shoal train` wrote. Throws Error(data) for any other text.
Profile profile_of(const std::string& trace);

/// Returns the profile as tables for people; `units`: with the units of the model.
std::string describe(const Profile& profile, bool units);
std::string to_json(const Profile& profile);

}  // namespace shoal::train
