#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace shoal::comm {

/// NCCL as it is found when a job runs: Shoal is built without its headers, and a machine without
/// GPUs needs no library. The declarations are those of NCCL 2.18 and newer, whose binary interface
/// is stable (nccl.h).
struct NcclLibrary {
  using Communicator = struct ncclComm*;
  using Stream = void*;  ///< cudaStream_t
  struct UniqueId {
    char bytes[128];
  };
  /// ncclConfig_t as of version 2.18; newer libraries accept it by its size and version.
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned int magic = 0xcafebeef;
    unsigned int version = 21800;
    int blocking = 0;  ///< calls return at once, and ncclCommGetAsyncError tells when they are done
    int cga_cluster_size, min_ctas, max_ctas;
    const char* net_name = nullptr;
    int split_share;
    Config();
  };
  enum Result : int { kSuccess = 0, kInProgress = 7 };
  enum Residence : int { kHostImmediate = 1 };

  const char* (*error_string)(int) = nullptr;
  const char* (*last_error)(Communicator) = nullptr;
  int (*version)(int*) = nullptr;
  int (*unique_id)(UniqueId*) = nullptr;
  int (*init)(Communicator*, int size, UniqueId, int rank, Config*) = nullptr;
  int (*async_error)(Communicator, int*) = nullptr;
  int (*abort)(Communicator) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int type, int operation, Communicator,
                    Stream) = nullptr;
  int (*reduce)(const void*, void*, std::size_t, int type, int operation, int root, Communicator,
                Stream) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, Communicator,
                   Stream) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int type, int operation, Communicator,
                        Stream) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int type, Communicator, Stream) = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, Communicator, Stream) = nullptr;
  int (*receive)(void*, std::size_t, int type, int peer, Communicator, Stream) = nullptr;
  int (*scaled_sum)(int* operation, void* scalar, int type, int residence, Communicator) = nullptr;
  int (*drop_operation)(int operation, Communicator) = nullptr;

  /// Loads the library at `path`; empty: the one in the environment variable SHOAL_NCCL, else
  /// libnccl.so.2, which comes with a PyTorch for CUDA. Throws Error(config) where there is none,
  /// or one older than 2.18.
  static std::shared_ptr<const NcclLibrary> load(const std::string& path = {});
};

}  // namespace shoal::comm
