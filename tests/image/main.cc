// Decodes and resizes pictures for compare.py, which knows what they should become.
//
// Reads lines of standard input, each a task, and answers each with a line: "ok WIDTH HEIGHT", or "error MESSAGE".
//   decode FILE OUT                              the decoded picture's bytes
//   resize FILE WIDTH HEIGHT FILTER TO_WIDTH TO_HEIGHT OUT
//                                                of a file of RGB bytes; FILTER: bilinear, bicubic, lanczos
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "image/decode.h"
#include "image/resize/pillow_resize.h"

namespace kvcache::image {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Result<Picture> Decode(std::istream& task) {
  std::string path;
  task >> path;
  const std::string file = ReadFile(path);
  return DecodePicture(std::as_bytes(std::span(file)), path);
}

Result<Picture> Resize(std::istream& task) {
  std::string path, filter;
  Picture picture;
  PictureSize size;
  task >> path >> picture.width >> picture.height >> filter >> size.width >> size.height;
  const std::string bytes = ReadFile(path);
  picture.rgb.assign(bytes.begin(), bytes.end());
  return PillowResize(picture, size,
                      filter == "bilinear"  ? ResizeFilter::kBilinear
                      : filter == "bicubic" ? ResizeFilter::kBicubic
                                            : ResizeFilter::kLanczos);
}

void Answer(const std::string& line) {
  std::istringstream task(line);
  std::string kind, out;
  task >> kind;
  const Result<Picture> picture = kind == "decode" ? Decode(task) : Resize(task);
  if (!picture.ok()) {
    std::cout << "error " << picture.status().message() << std::endl;
    return;
  }
  task >> out;
  std::ofstream(out, std::ios::binary)
      .write(reinterpret_cast<const char*>(picture->rgb.data()),
             static_cast<std::streamsize>(picture->rgb.size()));
  std::cout << "ok " << picture->width << ' ' << picture->height << std::endl;
}

}  // namespace
}  // namespace kvcache::image

int main() {
  for (std::string line; std::getline(std::cin, line);) kvcache::image::Answer(line);
}
