#include "engine/packed/packed_weights.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "engine/packed/packed_folder.h"
#include "kvcache/panel_store.h"
#include "platform/settled_file.h"

namespace kvcache {
namespace {

struct PackedProgram {
  std::mutex mutex;
  std::condition_variable written;
  int writers = 0;
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

void CountWriters(int change) {
  PackedProgram& program = TheProgram();
  const std::lock_guard lock(program.mutex);
  program.writers += change;
  program.written.notify_all();
}

}  // namespace

void UsePackedWeights(PackedWeightsOptions options) {
  PackedProgram& program = TheProgram();
  const std::lock_guard lock(program.mutex);
  program.options = std::move(options);
}

PackedLoad::PackedLoad(const GgufFile& file, Backend& backend) {
  const PackedWeightsOptions options = OptionsNow();
  auto* const user = dynamic_cast<PanelUser*>(&backend);
  if (options.directory.empty() || user == nullptr || file.size_bytes() < options.min_bytes ||
      !IsSettled(file.identity())) {
    return;
  }
  panels_ = std::make_shared<packed::ModelPanels>(
      file, packed::PathOf(options.directory, file.path()), user->panel_layout(), options.tell);
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
  CountWriters(1);
  const Status status = panels_->Write(
      [options, bytes, path = panels_->path()] {
        return packed::MakeRoom(options.directory, path, bytes, options.budget_bytes);
      },
      [] { CountWriters(-1); });
  if (!status.ok()) CountWriters(-1);
  return panels_;
}

void FlushPackedWeights(const std::function<void()>& waits,
                        const std::function<bool()>& cancelled) {
  constexpr auto kPoll = std::chrono::milliseconds(100);
  PackedProgram& program = TheProgram();
  std::unique_lock lock(program.mutex);
  if (program.writers > 0 && waits) waits();
  const auto is_done = [&] { return program.writers == 0; };
  if (!cancelled) return program.written.wait(lock, is_done);
  while (!program.written.wait_for(lock, kPoll, is_done) && !cancelled()) {
  }
}

std::string PackedWeightsFile(const std::string& directory, const std::string& model) {
  return packed::PathOf(directory, model);
}

int ClearPackedWeights(const std::string& directory) {
  return packed::Clear(directory);
}

}  // namespace kvcache
