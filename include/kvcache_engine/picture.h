// Pictures in prompts.
//
// A picture stands in a prompt as a run of cells. In the place of tokens, its cells have ids below 0:
//
//   tokens     2  106  255999  -1834577 -72 -20418821 …  256000  107       the ids of a picture's cells
//   pictures                   ^ {.begin = 3, .picture}
//
// The ids are hashes of everything that the cells' keys and values depend on besides the text before: the pixels, the
// size for the tower, and the tower. So equal pictures have equal ids, other pictures have others, and no token is below 0.
// Prefixes, stores and reports compare ids as they compare tokens.
//
//   KVCACHE_RETURN_IF_ERROR(engine.UseTower("mmproj.gguf"));
//   KVCACHE_ASSIGN_OR_RETURN(auto picture, engine.PreparePicture(file, "picture 1"));
//   KVCACHE_RETURN_IF_ERROR(engine.AddPicture(picture, prompt));
//   scheduler.Submit({.prompt = prompt.tokens, .pictures = prompt.pictures});
//
// Thread safety: immutable, and values.
// Design: docs/design/images.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/types.h"

namespace kvcache {

// The cells of a picture.
struct PictureShape {
  // Cells in all, at least kMinCells; fewer have too few bits of the hash.
  std::int32_t cells = 0;
  static constexpr std::int32_t kMinCells = 4;
  // The cells see each other, whatever their order, so a pass has all of them. If not, a cell sees those before it.
  bool is_whole = false;
  // The grid of the cells, rows of `columns` cells, for models whose positions have three axes; 0: there is none.
  std::int32_t columns = 0;
  std::int32_t rows = 0;
  bool operator==(const PictureShape&) const = default;
};

// Rows of a pass that take the place of embeddings: those of a picture's cells, whose ids are below 0.
struct InputRows {
  std::int32_t index = 0;         // batch index of the first token; positions ascend by one
  std::int32_t count = 0;         // tokens, side by side in the batch
  const float* values = nullptr;  // [hidden_size, count], host memory; nothing scales them
  // The tokens see each other, whatever their order. No later token of their sequence is in the pass.
  bool see_each_other = false;
};

// A picture that was prepared for an engine: its cells are known, and its tower has not run. Towers derive from it what
// they need.
class Picture {
 public:
  // `content`: a hash of everything that the picture's rows depend on. REQUIRES: shape.cells >= kMinCells. Throws
  // std::bad_alloc.
  Picture(const std::array<std::byte, 32>& content, PictureShape shape);
  virtual ~Picture() = default;
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;

  const PictureShape& shape() const { return shape_; }
  std::int32_t cells() const { return shape_.cells; }
  // The ids of the cells in prompts, all below 0.
  std::span<const std::int32_t> ids() const { return ids_; }
  // The hash, as 64 digits.
  const std::string& name() const { return name_; }

 private:
  PictureShape shape_;
  std::string name_;
  std::vector<std::int32_t> ids_;  // [cells]
};

using PicturePtr = std::shared_ptr<const Picture>;

// What is written around the cells of a picture, and for a picture in chat templates. Special tokens in it are special.
struct PictureMarks {
  std::string_view before{};
  std::string_view after{};
  std::string_view
      in_template{};  // in the place of which a prompt has `before`, the cells and `after`
};

// A picture of a prompt, and its first cell's index in the prompt.
struct PromptPicture {
  Position begin = 0;
  PicturePtr picture{};
  Position end() const { return begin + picture->cells(); }
};

// What a model reads: tokens, and ids of pictures' cells.
struct PicturePrompt {
  std::vector<std::int32_t> tokens{};
  std::vector<PromptPicture> pictures{};  // ascending, without overlap
};

}  // namespace kvcache
