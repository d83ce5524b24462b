// Decodes and resizes pictures for compare.py, which knows what they should become.
//
// Reads lines of standard input, each a task, and answers each with a line: "ok WIDTH HEIGHT", or "error MESSAGE".
//   decode FILE OUT                              the decoded picture's bytes
//   resize FILE WIDTH HEIGHT FILTER TO_WIDTH TO_HEIGHT OUT
//                                                of a file of RGB bytes; FILTER: bilinear, bicubic, lanczos
//   size RULE WIDTH HEIGHT NUMBER…               the size by a rule: largest, area, edge, with its numbers
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "image/decode.h"
#include "image/resize/pillow_resize.h"
#include "image/size_rule.h"

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

Result<PictureSize> Size(std::istream& task) {
  std::string rule;
  PictureSize picture;
  std::int64_t unit = 0, first = 0, second = 0;
  task >> rule >> picture.width >> picture.height >> unit >> first >> second;
  const int side = static_cast<int>(unit), limit = static_cast<int>(first);
  if (rule == "largest") return SizeFor(picture, LargestSize{side, limit});
  if (rule == "area") return SizeFor(picture, SizeWithinArea{side, first, second});
  return SizeFor(picture, SizeWithinEdge{side, limit});
}

void Answer(const std::string& line) {
  std::istringstream task(line);
  std::string kind, out;
  task >> kind;
  if (kind == "size") {
    const auto size = Size(task);
    if (size.ok()) std::cout << "ok " << size->width << ' ' << size->height << std::endl;
    if (!size.ok()) std::cout << "error " << size.status().message() << std::endl;
    return;
  }
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
