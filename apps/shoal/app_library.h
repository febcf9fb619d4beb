#pragma once

#include <string>

namespace shoal::apps {

/// The part of the program that stands on Torch, loaded when it is needed: ../lib/libshoal_app.so
/// beside the executable. It stays loaded.
class AppLibrary {
 public:
  /// Throws Error(input missing) with the loader's message when the library, or Torch below it,
  /// cannot be loaded.
  AppLibrary();

  /// Returns an entry point of apps/shoal/torch/entry.h. Throws Error(internal) when the library
  /// has none of that name.
  template <class Function>
  Function* entry(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;
  void* handle_;
};

/// Returns the path of this executable, with symbolic links followed.
std::string program_path();

}  // namespace shoal::apps
