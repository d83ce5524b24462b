// Decodes any bytes as a picture in PNG. Chunks get right checksums, so that damage is not all found by them.
#include <algorithm>
#include <string>

#include "image/formats/formats.h"
#include "image/pictures_testing.h"
#include "picture_fuzz.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0) return size;
  const std::string file =
      kvcache::image::testing::WithPngChecksums({reinterpret_cast<const char*>(data), size});
  std::copy(file.begin(), file.end(), data);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 8) return 0;  // no file of the format, which the caller has recognised
  kvcache::image::FuzzFormat(data, size, kvcache::image::DecodePng, kvcache::image::ExifOfPng);
  return 0;
}
