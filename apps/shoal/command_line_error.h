#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace shoal::apps {

/// Says what is wrong with a command line that `program` has refused with `error`, for people: an
/// unknown command or option with the nearest one that exists, arguments in the order in which they
/// were given, and otherwise what the error says.
std::string describe_command_line_error(const CLI::App& program, const CLI::ParseError& error);

}  // namespace shoal::apps
