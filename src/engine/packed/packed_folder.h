// The folder of files of packed weights: a name for each model's file, and a bound for all of them.
//
// Thread safety: free functions. Several processes may use one folder.
#pragma once

#include <cstdint>
#include <string>

#include "kvcache/status.h"

namespace kvcache::packed {

// Returns the path of the file for the model at `model`: the same for all names of the model's file.
std::string PathOf(const std::string& folder, const std::string& model);

// Says that a file is used now: it is evicted last.
void Touch(const std::string& path);

// Makes the folder, and makes room for a file at `path` of `bytes` bytes: removes the files that were used longest
// ago, until all together take at most `budget`, and what processes that were killed left behind. Errors: those of
// store::PrepareStoreDirectory; kOutOfMemory if the file is larger than the budget, or if the disk had less left
// than the file takes after it is written; kIo.
Status MakeRoom(const std::string& folder, const std::string& path, std::uint64_t bytes,
                std::uint64_t budget);

// Removes all files. Returns how many they were.
int Clear(const std::string& folder);

}  // namespace kvcache::packed
