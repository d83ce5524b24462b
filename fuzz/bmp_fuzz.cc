// Decodes any bytes as a picture in BMP.
#include "image/formats/formats.h"
#include "picture_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvcache::image::FuzzFormat(data, size, kvcache::image::DecodeBmp, kvcache::image::NoExif);
  return 0;
}
