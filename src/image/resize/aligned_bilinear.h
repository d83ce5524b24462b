// A bilinear filter with aligned corners: the outer pixels stay where they are. It reads four pixels for each new one,
// however much it shrinks, and rounds down. Only llama.cpp's older versions use it.
//
// Thread safety: pure functions.
#pragma once

#include "image/picture.h"
#include "image/resize/pillow_resize.h"
#include "kvcache/status.h"

namespace kvcache::image {

// Errors: as those of PillowResize.
Result<Picture> AlignedBilinearResize(const Picture& picture, PictureSize size);

}  // namespace kvcache::image
