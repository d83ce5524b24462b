"""Lists llama.cpp's builds for x86-64 processors, newest first, and finds their libraries."""

BUILDS = ["sapphirerapids", "zen4", "icelake", "skylakex", "alderlake", "haswell"]

# The builds with which an instruction set of ours is compared: those that use no more than it has.
BUILDS_OF_TARGET = {"AVX3_DL": ["zen4", "icelake", "skylakex"], "AVX3": ["skylakex", "haswell"],
                    "AVX_VNNI": ["alderlake", "haswell"], "AVX2": ["haswell"]}


def library(folder, build):
    """Returns the path of a build's library. ./dev (setup_oracle) renames the AMX build's, so that
    llama.cpp does not choose it."""
    path = folder / f"libggml-cpu-{build}.so"
    return path if path.exists() else folder / f"amx-{build}.so"
