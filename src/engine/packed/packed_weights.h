// Packed weights: what a backend makes of a model's weights when it loads them, kept in files for the next time
// (docs/design/packed-weights.md). A setting of the program, for all models that it loads.
//
// Thread safety: UsePackedWeights before any model is loaded; the other functions from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/packed/model_panels.h"
#include "gguf/gguf.h"
#include "kvcache/backend.h"

namespace kvcache {

struct PackedWeightsOptions {
  std::string directory;  // empty: none are kept
  // All files take at most so many bytes (packed_folder.h).
  static constexpr std::uint64_t kDefaultBudget = std::uint64_t{32} << 30;
  std::uint64_t budget_bytes = kDefaultBudget;
  // Models with less are packed within milliseconds.
  std::uint64_t min_bytes = std::uint64_t{64} << 20;
  // Says what was kept and what went wrong, on any thread. Nothing of it stops a model.
  packed::ModelPanels::Tell tell = [](packed::ModelPanels::Report, const std::string&) {};
};

void UsePackedWeights(PackedWeightsOptions options);

// Lets a backend take the weights of a model from its file of packed weights while this exists, and keeps those that
// are not there.
class PackedLoad {
 public:
  // Does nothing for a backend that cannot (PanelUser), or without a directory.
  PackedLoad(const GgufFile& file, Backend& backend);
  ~PackedLoad();
  PackedLoad(const PackedLoad&) = delete;
  PackedLoad& operator=(const PackedLoad&) = delete;

  // The model is loaded: writes its file, if it lacks anything. The result belongs to whoever has the model, and ends
  // before `file`; null: there is nothing.
  std::shared_ptr<packed::ModelPanels> Finish();

 private:
  PanelUser* user_ = nullptr;
  std::shared_ptr<packed::ModelPanels> panels_;
};

// How long FlushPackedWeights waits.
struct PackedWeightsWait {
  // Waits for no file that has more bytes left to write.
  std::uint64_t max_left_bytes = ~std::uint64_t{0};
  std::function<void()> waits{};  // is called before, if it waits
  std::function<bool()>
      cancelled{};  // is asked ten times a second, if there is one: true ends the wait
};

// Waits until all files are written. Returns whether they are; those that are not are given up when their model goes.
bool FlushPackedWeights(const PackedWeightsWait& wait = {});

// Returns what the names of all files for a model's file, which may not exist, begin with.
std::string PackedWeightsName(const std::string& model);

// Removes all files of a directory whose names begin with `name`. Returns how many they were.
int ClearPackedWeights(const std::string& directory, const std::string& name = "");

}  // namespace kvcache
