// Names a picture by its content: equal pixels have one name, from whatever file they came.
//
// Thread safety: pure functions.
#pragma once

#include "base/sha256.h"
#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

// Returns the SHA-256 of a name of this form, width and height (32 bits each, little-endian) and the bytes of the
// rows. Errors: kOutOfMemory.
Result<Sha256Hash> HashOf(const Picture& picture);

}  // namespace kvcache::image
