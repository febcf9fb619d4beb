# Sourced by tools that make a Python without CUDA. PyPI's PyTorch is linked with all of CUDA, 2 GB that collectives of CPU tensors never call.
# For every such library that this machine lacks, an empty one of the same name is loaded before Torch: CUDA cannot be used in this Python.

# missing_libraries TORCH: those that the PyTorch in this folder is linked with and that are nowhere, one a line.
missing_libraries() { ldd "$1/lib/libtorch_python.so" | sed -nE 's/^\s*(\S+) => not found$/\1/p' | sort -u; }

# make_stand_ins FOLDER TORCH PACKAGES [SEARCHED]: puts them into FOLDER, and has the Python whose packages lie in PACKAGES load them as it starts.
# SEARCHED is a folder in which this Python looks for packages too.
make_stand_ins() {
  local folder=$1 packages=$3 name functions
  mkdir -p "$folder"
  # libtorch_nvshmem.so takes the addresses of some of these; the functions of all others are looked up when they are first called.
  functions=$(nm -D --undefined-only "$2/lib/libtorch_nvshmem.so" 2>/dev/null | sed -nE 's/^ +[Uw] (nvshmem\w*)(@.*)?$/void \1(void) { abort(); }/p' || true)
  for name in $(missing_libraries "$2"); do
    printf '#include <stdlib.h>\n%s\n' "$functions" |
      gcc -shared -fPIC -x c -o "$folder/$name" -Wl,-soname,"$name" -
  done
  cat >"$packages/cuda_stand_ins.py" <<PY
import ctypes
import glob
import os
import sys

for library in glob.glob("$(realpath "$folder")/*"):
    ctypes.CDLL(library)
sys.setdlopenflags(os.RTLD_LAZY)
PY
  # Python executes a line of a .pth file that begins with `import` when it starts, and adds every other line to sys.path.
  printf '%s\n' "import cuda_stand_ins" "${@:4}" >"$packages/shoal_torch.pth"
}
