// Decodes any bytes as a picture in JPEG.
#include "image/formats/formats.h"
#include "picture_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;  // no file of the format, which the caller has recognised
  kvcache::image::FuzzFormat(data, size, kvcache::image::DecodeJpeg, kvcache::image::ExifOfJpeg);
  return 0;
}
