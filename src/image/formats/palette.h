// The colours of a picture whose pixels are indices.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

class Palette {
 public:
  static constexpr int kMaxColours = 256;

  // Returns 256 greys, from black to white.
  static Palette Greys();

  int size() const { return size_; }
  // REQUIRES: size() < kMaxColours.
  void Add(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
    colours_[static_cast<std::size_t>(size_++)] = {red, green, blue};
  }

  // Sets the pixels of a row. Errors: kCorrupt: an index that has no colour.
  // REQUIRES: `rgb` has three bytes for each index.
  Status Colour(std::span<const std::uint8_t> indices, std::span<std::uint8_t> rgb) const;
  // Sets all pixels.
  Status Colour(std::span<const std::uint8_t> indices, Picture& picture) const {
    return Colour(indices, picture.rgb);
  }

 private:
  std::array<std::array<std::uint8_t, 3>, kMaxColours> colours_{};
  int size_ = 0;
};

// Returns a zero for each pixel. Errors: kOutOfMemory.
Result<std::vector<std::uint8_t>> NewIndices(const Picture& picture);

}  // namespace kvcache::image
