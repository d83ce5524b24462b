// What makes the rows of pictures: a vision tower, or a function in tests.
//
// Thread safety: Prepare from any thread; everything else from the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcache/status.h"
#include "kvcache_engine/picture.h"

namespace kvcache {

class PictureTower {
 public:
  virtual ~PictureTower() = default;

  // Decodes a picture and brings it to the tower's size. Errors: as Engine::PreparePicture.
  virtual Result<PicturePtr> Prepare(std::span<const std::byte> file,
                                     std::string_view name) const = 0;
  // What the model's own processor writes around a picture; the texts live as long as the tower.
  virtual PictureMarks marks() const = 0;
  // Returns whether models of this architecture have such towers.
  virtual bool IsOf(std::string_view architecture) const = 0;
  virtual int row_size() const = 0;  // values of a row
  // Returns whether the picture was prepared for this tower.
  virtual bool Takes(const Picture& picture) const = 0;

  // Begins a picture, which must outlive its steps; the one before is dropped. Errors: kInvalidArgument for a picture
  // of another tower; kOutOfMemory.
  virtual Status Begin(const Picture& picture) = 0;
  // Does a part of the work, over at most `rows` rows inside the tower. REQUIRES: !done(). After an error there is no
  // picture.
  static constexpr int kMaxStepRows = 512;
  virtual Status Step(int rows) = 0;
  virtual bool done() const = 0;
  // Writes the rows [row_size(), cells]. REQUIRES: done().
  virtual void CopyRows(float* rows) const = 0;
  // Drops the picture and frees the memory for its work, which the next one takes again.
  virtual void Release() = 0;
};

}  // namespace kvcache
