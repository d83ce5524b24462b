"""Settings that must be made before PyTorch is loaded: import this first.

OpenBLAS 0.3.21 treats newer Xeons as SSE3 machines, which costs a factor of
ten, so this sets the processor type. The user's own setting has precedence.
"""

import os


def _flags():
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as info:
      line = next((line for line in info if line.startswith("flags")), "")
  except OSError:
    return set()
  return set(line.split())


def prepare():
  flags = _flags()
  if "avx512bw" in flags:
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx512")
  elif "avx2" in flags:
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
  os.environ.setdefault("OMP_NUM_THREADS", "1")


prepare()
