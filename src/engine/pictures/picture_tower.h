// What makes the rows of pictures: a vision tower, or a function in tests.
//
// Thread safety: Prepare from any thread; everything else from the engine's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcache/status.h"
#include "kvcache_engine/picture.h"

namespace kvcache {

// What a model's own processor writes around the cells of a picture.
struct PictureMarks {
  std::string_view before;
  std::string_view after;
  std::string_view
      in_template;  // that the chat template writes for a picture, in the place of both
};

class PictureTower {
 public:
  virtual ~PictureTower() = default;

  // Decodes a picture and brings it to the tower's size. Errors: as Engine::PreparePicture.
  virtual Result<PicturePtr> Prepare(std::span<const std::byte> file,
                                     std::string_view name) const = 0;
  virtual PictureMarks marks() const = 0;
  virtual int row_size() const = 0;  // values of a row

  // Begins a picture, which must outlive its steps; the one before is dropped. Errors: kInvalidArgument for a picture
  // of another tower; kOutOfMemory.
  virtual Status Begin(const Picture& picture) = 0;
  // Does a part of the work. REQUIRES: !done(). After an error there is no picture.
  virtual Status Step() = 0;
  virtual bool done() const = 0;
  // Writes the rows [row_size(), cells]. REQUIRES: done().
  virtual void CopyRows(float* rows) const = 0;
  // Returns the bytes of activations and of weights outside the file.
  virtual std::int64_t bytes() const = 0;
};

}  // namespace kvcache
