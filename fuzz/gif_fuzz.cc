// Decodes any bytes as a picture in GIF.
#include "image/formats/formats.h"
#include "picture_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvcache::image::FuzzFormat(data, size, kvcache::image::DecodeGif, kvcache::image::NoExif);
  return 0;
}
