"""llama.cpp's builds for x86-64 processors, one per generation, the newest first, and where their files are."""

BUILDS = ["sapphirerapids", "zen4", "icelake", "skylakex", "alderlake", "haswell"]


def library(folder, build):
    """That of AMX has a name that llama.cpp does not look for by itself (setup_oracle in ./dev)."""
    path = folder / f"libggml-cpu-{build}.so"
    return path if path.exists() else folder / f"amx-{build}.so"
