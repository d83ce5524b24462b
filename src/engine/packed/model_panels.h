// The panels of a model that is loaded: those that its file of packed weights has, and those that a backend makes,
// which become the next file.
//
// Thread safety: as PanelStore; the end of the object waits for the piece that is being written, and gives a file that
// is not complete up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/packed/packed_file.h"
#include "engine/packed/packed_writer.h"
#include "gguf/gguf.h"
#include "kvcache/panel_store.h"
#include "kvcache/status.h"

namespace kvcache::packed {

class ModelPanels final : public PanelStore {
 public:
  // kNoRoom: the budget or the disk is too small, which is no fault.
  enum class Report : std::uint8_t { kDone, kNoRoom, kProblem };
  using Tell = std::function<void(Report, const std::string&)>;

  // `path`: of the file of packed weights. `file` must outlive the calls of Find and Keep.
  ModelPanels(const GgufFile& file, std::string path, std::uint64_t layout, Tell tell);
  ~ModelPanels() override;

  const std::byte* Find(const TensorView& w, std::size_t size_bytes) override;
  void Keep(const TensorView& w, std::shared_ptr<const std::byte> panels,
            std::size_t size_bytes) override;
  Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const override;
  bool CheckPiece(std::int64_t piece) override;

  const std::string& path() const { return path_; }
  // Returns whether the file lacks panels of the model.
  bool LacksPanels() const { return lacks_panels_; }
  const std::shared_ptr<WriteProgress>& progress() const { return progress_; }
  // Returns the size of the file that Write makes.
  std::uint64_t FileBytes() const;
  // Writes the file in a thread of its own. `make_room` comes before, `done` after it, in that thread. Errors:
  // kOutOfMemory. REQUIRES: no Find and no Keep from now on.
  Status Write(std::function<Status()> make_room, std::function<void()> done);

 private:
  // Returns null for rows that are not in the model's file.
  const GgufPart* PartOf(const TensorView& w) const;
  Status WriteNow(const std::function<Status()>& make_room);
  void TellOf(const Status& status) const;
  // Checks the panels that come from the file: a hash of damaged ones would make them good.
  Status CheckKept();
  WeightKey KeyOf(const GgufPart& part, const TensorView& w) const;

  const GgufFile& file_;
  const std::string path_;
  const Tell tell_;
  std::shared_ptr<PackedFile> packed_;  // null: there is none, or it is of no use
  PackedModel model_;
  bool lacks_panels_ = false;
  std::atomic<bool> is_damaged_{false};
  const std::shared_ptr<WriteProgress> progress_ = std::make_shared<WriteProgress>();
  std::thread writer_;
};

}  // namespace kvcache::packed
