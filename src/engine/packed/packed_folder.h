// The folder of files of packed weights: a name for each model's file, and a bound for all of them.
//
// Thread safety: free functions. Several processes may use one folder.
#pragma once

#include <cstdint>
#include <string>

#include "kvcache/status.h"

namespace kvcache::packed {

// Returns the path of a model's file without links; `model` itself if there is none.
std::string RealPath(const std::string& model);
// Returns what the names of all files for the model at `model` begin with: the same for all names of the model's file.
std::string NameOf(const std::string& model);
// Returns the path of the file for the model at `model` with panels of this layout. Programs of several versions each
// have their own.
std::string PathOf(const std::string& folder, const std::string& model, std::uint64_t layout);

// Makes the folder, and makes room for a file at `path` of `bytes` bytes, so that all together take at most `budget`.
// Removes what processes that were killed left behind, and files whose model is gone. Then, if that makes enough room,
// files that nobody uses and nobody used within the last day, those that were used longest ago first. Errors: those of
// store::PrepareStoreDirectory; kOutOfMemory if the budget is too small, or if fewer than `bytes` bytes of the disk
// would be free once the file is written; kIo. Files of other users stay.
Status MakeRoom(const std::string& folder, const std::string& path, std::uint64_t bytes,
                std::uint64_t budget);

// Removes all files whose names begin with `name`. Returns how many they were.
int Clear(const std::string& folder, const std::string& name = "");

}  // namespace kvcache::packed
