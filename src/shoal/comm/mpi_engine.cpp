#include "shoal/comm/mpi_engine.h"

#include <fmt/format.h>

#include "shoal/base/error.h"

#ifdef SHOAL_HAS_MPI

#include "shoal/comm/allocator.h"
#include "shoal/comm/mpi_compat.h"

namespace shoal::comm {

Group connect_over_mpi(const WorldOptions& options, std::size_t largest_count) {
  const auto world = std::make_shared<MpiWorld>();
  if (world->rank() != options.rank || world->size() != options.size) {
    throw Error(ErrorKind::kConfig, "connect",
                fmt::format("MPI counts this process as rank {} of {}, its launcher as {} of {}",
                            world->rank(), world->size(), options.rank, options.size))
        .hint("start the ranks with the mpirun of the MPI that `shoal env` shows");
  }
  if (options.arena) ensure_arena(options.memory_limit_bytes, world->ranks_on_host());
  if (options.size == 1) return {};
  return Group(mpi_communicator(world, options.timeout, largest_count));
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text);
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace shoal::comm

#else

namespace shoal::comm {

Group connect_over_mpi(const WorldOptions&, std::size_t) {
  throw Error(ErrorKind::kConfig, "connect", "this Shoal is built without MPI")
      .hint(
          "install one (Debian: libopenmpi-dev and openmpi-bin) and build again, or choose another "
          "parallelism.transport");
}

std::string mpi_library() { return ""; }

}  // namespace shoal::comm

#endif
