#include "engine/packed/packed_weights.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "engine/packed/packed_folder.h"
#include "kvcache/panel_store.h"
#include "platform/settled_file.h"

namespace kvcache {
namespace {

struct PackedProgram {
  std::mutex mutex;
  std::condition_variable written;
  std::vector<std::shared_ptr<packed::WriteProgress>> writers;
  std::set<std::string> told;  // that there is no room: once for each
  PackedWeightsOptions options;
};

PackedProgram& TheProgram() {
  static PackedProgram& program = *new PackedProgram;  // writers may outlive main
  return program;
}

PackedWeightsOptions OptionsNow() {
  PackedProgram& program = TheProgram();
  const std::lock_guard lock(program.mutex);
  return program.options;
}

void AddWriter(const std::shared_ptr<packed::WriteProgress>& writer) {
  PackedProgram& program = TheProgram();
  const std::lock_guard lock(program.mutex);
  program.writers.push_back(writer);
}

void RemoveWriter(const std::shared_ptr<packed::WriteProgress>& writer) {
  PackedProgram& program = TheProgram();
  const std::lock_guard lock(program.mutex);
  std::erase(program.writers, writer);
  program.written.notify_all();
}

// A server that loads a model again and again says once that there is no room for it.
packed::ModelPanels::Tell TellOnce(packed::ModelPanels::Tell tell, const std::string& path) {
  return
      [tell = std::move(tell), path](packed::ModelPanels::Report report, const std::string& text) {
        if (report == packed::ModelPanels::Report::kNoRoom) {
          PackedProgram& program = TheProgram();
          const std::lock_guard lock(program.mutex);
          if (!program.told.insert(path).second) return;
        }
        tell(report, text);
      };
}

}  // namespace

void UsePackedWeights(PackedWeightsOptions options) {
  PackedProgram& program = TheProgram();
  const std::lock_guard lock(program.mutex);
  program.options = std::move(options);
  program.told.clear();
}

PackedLoad::PackedLoad(const GgufFile& file, Backend& backend) {
  const PackedWeightsOptions options = OptionsNow();
  auto* const user = dynamic_cast<PanelUser*>(&backend);
  if (options.directory.empty() || user == nullptr || file.size_bytes() < options.min_bytes ||
      !IsSettled(file.identity())) {
    return;
  }
  const std::string path = packed::PathOf(options.directory, file.path(), user->panel_layout());
  panels_ = std::make_shared<packed::ModelPanels>(file, path, user->panel_layout(),
                                                  TellOnce(options.tell, path));
  user_ = user;
  user_->UsePanels(panels_);
}

PackedLoad::~PackedLoad() {
  if (user_ != nullptr) user_->UsePanels(nullptr);
}

std::shared_ptr<packed::ModelPanels> PackedLoad::Finish() {
  if (panels_ == nullptr) return nullptr;
  const PackedWeightsOptions options = OptionsNow();
  const std::uint64_t bytes = panels_->FileBytes();
  if (!panels_->LacksPanels() || bytes < options.min_bytes) return panels_;
  AddWriter(panels_->progress());
  const Status status = panels_->Write(
      [options, bytes, path = panels_->path()] {
        return packed::MakeRoom(options.directory, path, bytes, options.budget_bytes);
      },
      [writer = panels_->progress()] { RemoveWriter(writer); });
  if (!status.ok()) RemoveWriter(panels_->progress());
  return panels_;
}

bool FlushPackedWeights(const PackedWeightsWait& wait) {
  constexpr auto kPoll = std::chrono::milliseconds(100);
  PackedProgram& program = TheProgram();
  std::unique_lock lock(program.mutex);
  const auto ends_soon = [&] {
    return std::ranges::all_of(program.writers, [&](const auto& writer) {
      return writer->left_bytes.load() <= wait.max_left_bytes;
    });
  };
  if (program.writers.empty()) return true;
  if (!ends_soon()) return false;
  if (wait.waits) wait.waits();
  const auto is_done = [&] { return program.writers.empty(); };
  while (!program.written.wait_for(lock, kPoll, is_done)) {
    if (wait.cancelled && wait.cancelled()) return false;
  }
  return true;
}

std::string PackedWeightsName(const std::string& model) {
  return packed::NameOf(model);
}

int ClearPackedWeights(const std::string& directory, const std::string& name) {
  return packed::Clear(directory, name);
}

}  // namespace kvcache
