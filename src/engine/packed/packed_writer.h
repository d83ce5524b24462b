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
  FileIdentity model;
  std::uint64_t digest = 0;
  std::uint64_t layout = 0;
  std::vector<WeightPanels> weights;
};

// Returns the size of the model's file.
std::uint64_t FileBytesOf(const PackedModel& model);

// Writes the file in whole huge pages and gives it its name when all of it is on the disk. Errors: those of NewFile;
// kCancelled once `stop` is true. What was there before stays then.
Status WriteFile(const std::string& path, const PackedModel& model, const std::atomic<bool>& stop);

}  // namespace kvcache::packed
