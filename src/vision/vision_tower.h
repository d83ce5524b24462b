// A vision tower: patches of a picture → embeddings for a decoder, one for each token.
//
//   KVCACHE_ASSIGN_OR_RETURN(auto tower, VisionTower::Load(file, backend));
//   KVCACHE_ASSIGN_OR_RETURN(const PreparedPicture picture, Prepare(bytes, "picture 1", tower->settings()));
//   std::vector<float> rows(tower->embedding_width() * picture.layout.token_count);
//   KVCACHE_RETURN_IF_ERROR(tower->Embed(picture, rows));
//
// A picture's work is a list of steps, each over at most kMaxStepRows patches. Between two steps a caller may do other
// things with the backend, such as a pass of a decoder. Each patch sees all others, so a layer begins when all patches
// have gone through the one before it.
//
// Exactness: a picture's embeddings depend on its pixels and on the file: not on the number of threads, the size of the
// steps, or other pictures.
//
// Memory: the weights; for the present picture its patches and, on the backend, three values of `width` for each patch.
//
// Thread safety: one thread at a time, which is also the backend's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "vision/prepared_picture.h"
#include "vision/vision_settings.h"

namespace kvcache::vision {

class VisionTower {
 public:
  static constexpr int kMaxStepRows = 512;

  // Reads the settings and the weights. `file` and `backend` must outlive the tower. A backend that divides layers
  // among machines has all of the tower where its first layers are (Backend::kBeforeLayers); each step enters them. Errors:
  // those of ReadVisionSettings; kCorrupt, kUnsupported: a tensor, with the file's path; kOutOfMemory.
  static Result<std::unique_ptr<VisionTower>> Load(const GgufFile& file, Backend& backend);

  virtual ~VisionTower() = default;

  virtual const VisionSettings& settings() const = 0;
  // Values of one embedding: settings().embedding_width times settings().parts().
  virtual int embedding_width() const = 0;

  // Begins a picture; the one before is dropped. Errors: kInvalidArgument: the pixels or the layout are not those of
  // Prepare for these settings; kOutOfMemory. After an error there is no picture.
  virtual Status Begin(const PreparedPicture& picture) = 0;

  // Does the next step, over at most `rows` patches (1 to kMaxStepRows). REQUIRES: Begin succeeded, and !done(). Errors:
  // the backend's. After an error there is no picture.
  virtual Status Step(int rows) = 0;
  virtual bool done() const = 0;

  // Returns the embeddings [embedding_width, token_count] in host memory, valid until the next Begin. REQUIRES: done().
  virtual std::span<const float> embeddings() const = 0;

  // Drops the picture and frees the memory for its work. The weights stay.
  virtual void Release() = 0;

  // Begin and all steps. Writes [embedding_width, token_count]. Errors: theirs; kInvalidArgument: `out` has another size.
  Status Embed(const PreparedPicture& picture, std::span<float> out);

  virtual std::int64_t ActivationBytes() const = 0;  // of the present picture
};

}  // namespace kvcache::vision
