// The data commands alone, so that their tests need no other part of the program.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/shoal/command.h"
#include "shoal/base/error.h"

int main(int argc, char** argv) {
  CLI::App app("shoal");
  shoal::apps::add_data_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const shoal::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return shoal::exit_code(error.kind());
  }
  return 0;
}
