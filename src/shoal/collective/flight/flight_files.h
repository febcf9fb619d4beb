#pragma once

#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/flight/flight_book.h"

namespace shoal::collective {

/// Whose record is written.
struct FlightOwner {
  std::string run;  ///< the same for all ranks of one start of a job, and for no other start
  int rank = 0, ranks = 1;
};

/// Writes what a rank remembers when it fails, as JSON lines, into `directory`:
///   flight-rank-<r>.jsonl: a line {"record":"rank", run, rank, ranks, written, kind, error} (times
///   in seconds since 1970), then a line
///     {"record":"call", group, members, rank, sequence, call, began, took_us} for each collective,
///     of this rank and, where memory is shared, of others; took_us is null while it is not
///     complete;
///   flight.jsonl: the same of all ranks of the run that have written so far, each call once, and a
///   line {"record":"verdict", group, sequence, text}
///     for each group that is stuck.
/// Files are replaced as a whole. Ranks that share the directory may write at the same time. Throws
/// Error(output).
void write_flight(const std::string& directory, const FlightOwner& owner, const FlightBook& book,
                  const Error& cause);

/// Removes what an earlier run left of `rank`; rank 0 also flight.jsonl. Nothing there is no error.
void forget_flight(const std::string& directory, int rank);

/// The lines of flight.jsonl made of those of the ranks' files; lines of other runs, and what is no
/// such line, are left out.
std::string merge_flights(const std::vector<std::string>& files, const std::string& run);

}  // namespace shoal::collective
