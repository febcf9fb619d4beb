#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shoal::checkpoint::format {

/// A folder of checkpoints: one `step-<n>` folder each, complete from the moment it has that name.
/// A checkpoint that is being written or removed has a name that begins with a dot
/// (`.writing-step-<n>`, `.removing-step-<n>`), so a crash leaves rubbish at most, never half a
/// checkpoint.

/// A complete checkpoint of a folder.
struct Step {
  std::int64_t step = 0;
  std::string path;
};

/// Returns where the checkpoint of a step lies in the folder `directory`: <directory>/step-<n>.
std::string step_path(const std::string& directory, std::int64_t step);

/// Returns the complete checkpoints of `directory`, oldest step first; empty when there is none or
/// no such folder.
std::vector<Step> list_steps(const std::string& directory);
/// Returns the newest of them.
std::optional<Step> newest_step(const std::string& directory);
/// Returns `path` itself when it is a checkpoint, else the newest checkpoint in it or in its
/// `checkpoints` folder (a run directory). Throws Error(input missing).
std::string resolve_checkpoint(const std::string& path);

/// Makes an empty folder beside the checkpoints to write into, and `directory` if need be. Removes
/// the folder of an earlier attempt. Throws Error(output).
std::string begin_step(const std::string& directory, std::int64_t step);
/// Renames what begin_step made to `step-<n>`, replacing an older one of that name in the same
/// instant. `sync`: the folder reaches the disk before and after. Returns the new path. Throws
/// Error(output).
std::string commit_step(const std::string& directory, std::int64_t step, bool sync);
/// Removes what begin_step made. Never throws.
void abandon_step(const std::string& directory, std::int64_t step) noexcept;
/// Removes all but the newest `keep` checkpoints (0: none) and everything that crashed writers left
/// behind. `saved`, the step that was just written, stays even if later ones of an older run lie
/// there. Only for the one writer of `directory`.
void prune_steps(const std::string& directory, int keep,
                 std::optional<std::int64_t> saved = std::nullopt);

/// Syncs a folder to the disk (fsync). Throws Error(output).
void sync_directory(const std::string& path);

}  // namespace shoal::checkpoint::format
