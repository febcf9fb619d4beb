#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal ckpt ls | show | verify | diff | reshard | export | import`: look into checkpoints and
/// rewrite them, on one process and without Torch. `diff` leaves exit code 1 where something
/// differs, as diff does.
void add_ckpt_command(CLI::App& app, int& exit_code);

}  // namespace shoal::apps
