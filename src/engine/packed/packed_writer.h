// Writes a file of packed weights behind the model's back.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/packed/packed_format.h"
#include "kvcache/status.h"

namespace kvcache::packed {

// The panels of a weight, as they are in memory.
struct WeightPanels {
  WeightKey key;
  std::shared_ptr<const std::byte> panels;
  std::uint64_t bytes = 0;
  bool is_kept = false;  // they come from a file
};

struct PackedModel {
  std::string path;  // of the model's file, without links
  FileIdentity model;
  std::uint64_t digest = 0;
  std::uint64_t layout = 0;
  std::vector<WeightPanels> weights;
};

// What another thread says and asks while a file is written.
struct WriteProgress {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> left_bytes{0};
};

// Returns the size of the model's file.
std::uint64_t FileBytesOf(const PackedModel& model);

// Returns whether nothing has the model's path any more.
bool IsGone(const std::string& model);

// Writes the file in whole huge pages, for this user alone, and gives it its name when all of it is on the disk. Errors:
// those of NewFile, but kOutOfMemory if there is no room; kCorrupt if panels are mapped from a file that was cut;
// kCancelled once `stop` is true, and if the model is gone at the end. What was there before stays then.
Status WriteFile(const std::string& path, const PackedModel& model, WriteProgress& progress);

}  // namespace kvcache::packed
