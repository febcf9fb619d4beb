#include "apps/shoal/app_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "shoal/base/error.h"

namespace shoal::apps {

std::string program_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

AppLibrary::AppLibrary() {
  const auto path =
      std::filesystem::path(program_path()).parent_path().parent_path() / "lib" / "libshoal_app.so";
  // RTLD_NOW: what is missing is said here and not in the middle of a step. It is never closed:
  // threads of LibTorch live on in it.
  handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!handle_) {
    throw Error(ErrorKind::kInputMissing, "load",
                fmt::format("cannot load {}: {}", path.string(), ::dlerror()))
        .hint(
            "`shoal env` shows what this program found; a build without Torch "
            "(SHOAL_TORCH_ROOMS=OFF) cannot train");
  }
}

void* AppLibrary::symbol(const char* name) const {
  void* found = ::dlsym(handle_, name);
  if (!found) {
    throw Error(ErrorKind::kInternal, "load",
                fmt::format("libshoal_app.so has no {}: it belongs to another build", name));
  }
  return found;
}

}  // namespace shoal::apps
