#pragma once

#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/flight/flight_book.h"

namespace shoal::collective {

/// Names the rank whose record is written.
struct FlightOwner {
  std::string run;  ///< names one start of the job: equal on all its ranks, and on no others
  int rank = 0;
  int ranks = 1;
};

/// Writes the records of a rank that fails, as JSON lines, into `directory`:
///   flight-rank-<r>.jsonl: a line {"record":"rank", run, rank, ranks, written, kind, error}, then
///     a line {"record":"call", run, group, members, rank, sequence, call, began, took_us} for each
///     collective of this rank and, where memory is shared, of others. Times are seconds since
///     1970; took_us is null while the collective is not complete.
///   flight.jsonl: the lines of all ranks of the run that have written so far, each call once, and
///     a line {"record":"verdict", group, sequence, text} for each group that is stuck.
/// Files are replaced as a whole. Ranks that share the directory may write at the same time. Throws
/// Error(output).
void write_flight(const std::string& directory, const FlightOwner& owner, const FlightBook& book,
                  const Error& cause);

/// Returns the lines {"record":"call"} of a rank that goes on, as write_flight has them.
std::string flight_lines(const FlightOwner& owner, const FlightBook& book);

/// Removes the file of an earlier run for `rank`; rank 0 also removes flight.jsonl. A missing file
/// is no error.
void forget_flight(const std::string& directory, int rank);

/// Returns the lines of flight.jsonl, made from the texts of the ranks' files. It leaves out lines
/// of other runs and lines that are not valid.
std::string merge_flights(const std::vector<std::string>& files, const std::string& run);

}  // namespace shoal::collective
