// The rows of pictures: a tower computes them step by step, and those that were used last are kept.
//
// Thread safety: the engine's thread, except tower() for PictureTower::Prepare.
// Design: docs/design/images.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/pictures/picture_tower.h"
#include "kvcache/status.h"
#include "kvcache_engine/picture.h"

namespace kvcache {

// The rows of a picture's cells.
struct EmbeddedPicture {
  std::string name;  // of the picture
  int row_size = 0;
  std::vector<float> values;  // [row_size, cells]

  std::int64_t bytes() const { return static_cast<std::int64_t>(values.size() * sizeof(float)); }
  const float* Row(std::int32_t cell) const {
    return values.data() + std::int64_t{cell} * row_size;
  }
};
using EmbeddedPtr = std::shared_ptr<const EmbeddedPicture>;

class PictureRows {
 public:
  // Bytes of rows that are kept for later prompts, at most. Rows that are more than this are not kept.
  static constexpr std::int64_t kMaxKeptBytes = std::int64_t{64} << 20;

  explicit PictureRows(std::unique_ptr<PictureTower> tower) : tower_(std::move(tower)) {}

  const PictureTower& tower() const { return *tower_; }

  // Returns the rows if they are kept, else null.
  EmbeddedPtr Find(const Picture& picture);
  // Works on the rows until `stops` returns true after a step over `step_rows` rows of the tower, and returns them once
  // they are complete, else null. Another picture's work that was not completed is lost. Errors: the tower's; kOutOfMemory.
  Result<EmbeddedPtr> Advance(const PicturePtr& picture, int step_rows,
                              const std::function<bool()>& stops);
  // Returns the rows. Errors: those of Advance; kCancelled once *interrupt is true.
  Result<EmbeddedPtr> Compute(const PicturePtr& picture, const std::atomic<bool>* interrupt);

  // Says that nobody waits for rows: a picture whose work has not ended is dropped.
  void Rest() { current_ = nullptr; }
  // Evicts the rows that are kept for later prompts, and the tower's memory for a picture unless it works on one.
  void Drop();
  // Returns the bytes of all rows, kept or with a request, but for the largest ones that only requests have: a request
  // that is alone continues, whatever its rows take. A budget counts them; a tower's weights and activations it does not.
  std::int64_t HeldBytes() const;
  // Returns how many pictures the tower has computed.
  std::int64_t runs() const { return runs_; }

 private:
  std::int64_t KeptBytes() const;
  void Keep(EmbeddedPtr rows);

  std::unique_ptr<PictureTower> tower_;
  std::list<EmbeddedPtr> kept_;                             // the last used one first
  std::vector<std::weak_ptr<const EmbeddedPicture>> made_;  // all that may still be in use
  PicturePtr current_;                                      // that the tower works on
  std::int64_t runs_ = 0;
};

}  // namespace kvcache
