#include "shoal/comm/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <climits>
#include <cstdlib>

#include "shoal/base/error.h"

namespace shoal::comm {
namespace {

constexpr int kOldest = 21800;  // 2.18.0

Error unusable(const std::string& path, const std::string& why) {
  Error error(ErrorKind::kConfig, "nccl", fmt::format("'{}' cannot be used: {}", path, why));
  error.hint("install a PyTorch with CUDA, or name the library in SHOAL_NCCL");
  return error;
}

template <class Function>
void find(void* library, const std::string& path, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (!function) throw unusable(path, fmt::format("it has no {}", name));
}

}  // namespace

// "Not set", so that NCCL chooses.
NcclLibrary::Config::Config()
    : cga_cluster_size(INT_MIN), min_ctas(INT_MIN), max_ctas(INT_MIN), split_share(INT_MIN) {}

std::shared_ptr<const NcclLibrary> NcclLibrary::load(const std::string& given) {
  const char* const named = std::getenv("SHOAL_NCCL");
  const std::string path = !given.empty() ? given : named ? named : "libnccl.so.2";
  // All connections are made when ranks meet: later a rank would wait in the first operation of a
  // kind for peers that may wait for it in another group.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  // Never closed: its threads may outlive every communicator.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    const char* const why = ::dlerror();
    throw unusable(path, why ? why : "it does not load");
  }
  auto nccl = std::make_shared<NcclLibrary>();
  find(library, path, "ncclGetErrorString", nccl->error_string);
  find(library, path, "ncclGetLastError", nccl->last_error);
  find(library, path, "ncclGetVersion", nccl->version);
  find(library, path, "ncclGetUniqueId", nccl->unique_id);
  find(library, path, "ncclCommInitRankConfig", nccl->init);
  find(library, path, "ncclCommGetAsyncError", nccl->async_error);
  find(library, path, "ncclCommAbort", nccl->abort);
  find(library, path, "ncclGroupStart", nccl->group_start);
  find(library, path, "ncclGroupEnd", nccl->group_end);
  find(library, path, "ncclAllReduce", nccl->all_reduce);
  find(library, path, "ncclReduce", nccl->reduce);
  find(library, path, "ncclBroadcast", nccl->broadcast);
  find(library, path, "ncclReduceScatter", nccl->reduce_scatter);
  find(library, path, "ncclAllGather", nccl->all_gather);
  find(library, path, "ncclSend", nccl->send);
  find(library, path, "ncclRecv", nccl->receive);
  find(library, path, "ncclRedOpCreatePreMulSum", nccl->scaled_sum);
  find(library, path, "ncclRedOpDestroy", nccl->drop_operation);
  int version = 0;
  nccl->version(&version);
  if (version < kOldest)
    throw unusable(path, fmt::format("it has version {}, and {} is needed", version, kOldest));
  return nccl;
}

}  // namespace shoal::comm
