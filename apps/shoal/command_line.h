#pragma once

namespace shoal::apps {

/// The program: parses the command line, carries out the command that it names, says on standard
/// error why one failed, and returns the exit code.
int run_command_line(int argc, char** argv);

}  // namespace shoal::apps
