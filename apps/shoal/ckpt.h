#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal ckpt ls | show | verify | diff | reshard | export | import`, which look into
/// checkpoints and rewrite them, in one process and without Torch. `diff` leaves exit code 1 where
/// something differs, as diff(1) does.
void add_ckpt_command(CLI::App& app, int& exit_code);

}  // namespace shoal::apps
