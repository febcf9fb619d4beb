#include "apps/shoal/command_line.h"

int main(int argc, char** argv) { return shoal::apps::run_command_line(argc, argv); }
