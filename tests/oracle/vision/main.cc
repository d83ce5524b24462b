// Makes projector files with random weights, and computes the embeddings of a picture, for compare.py and
// bench/peer/vision_peer.py.
//
//   vision_oracle make KEY=VALUE...            KEY: path, seed, projector, type, and the numbers of VisionFileShape
//   vision_oracle embed FILE WIDTH HEIGHT THREADS REPEATS < rgb > embeddings.f32
//
// `embed` writes to the standard error how many tokens it made, and the seconds of each repeat: of the wall clock and of
// the processor.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "image/picture_hash.h"
#include "kvcache/cpu_backend.h"
#include "support/pictures/vision_file.h"
#include "vision/vision_tower.h"

namespace {

using kvcache::Status;
using kvcache::vision_test::VisionFileShape;

Status Make(const std::vector<std::string>& words) {
  VisionFileShape shape;
  std::string path;
  std::uint64_t seed = 1;
  const std::map<std::string, int*> numbers = {{"image_size", &shape.image_size},
                                               {"patch_size", &shape.patch_size},
                                               {"width", &shape.width},
                                               {"heads", &shape.heads},
                                               {"ffn", &shape.ffn},
                                               {"layers", &shape.layers},
                                               {"merge", &shape.merge},
                                               {"embedding_width", &shape.embedding_width},
                                               {"whole_layer_step", &shape.whole_layer_step},
                                               {"deep_step", &shape.deep_step},
                                               {"min_pixels", &shape.min_pixels},
                                               {"limits", &shape.limits}};
  const std::map<std::string, kvcache::DType> types = {{"f32", kvcache::DType::kF32},
                                                       {"f16", kvcache::DType::kF16},
                                                       {"bf16", kvcache::DType::kBF16},
                                                       {"q8_0", kvcache::DType::kQ8_0}};
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "path") {
      path = value;
    } else if (key == "seed") {
      seed = std::stoull(value);
    } else if (key == "projector") {
      shape.projector = value;
    } else if (key == "type") {
      shape.type = types.at(value);
    } else if (key == "swapped_ffn") {
      shape.swapped_ffn = value == "1";
    } else {
      *numbers.at(key) = std::stoi(value);
    }
  }
  return kvcache::vision_test::WriteVisionFile(shape, seed, path);
}

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Status Embed(const std::vector<std::string>& words) {
  namespace vision = kvcache::vision;
  KVCACHE_ASSIGN_OR_RETURN(const auto file, kvcache::GgufFile::Open(words.at(0)));
  KVCACHE_ASSIGN_OR_RETURN(auto backend,
                           kvcache::MakeCpuBackend({.threads = std::stoi(words.at(3))}));
  KVCACHE_ASSIGN_OR_RETURN(auto tower, vision::VisionTower::Load(*file, *backend));
  vision::PreparedPicture picture;
  picture.pixels.width = std::stoi(words.at(1));
  picture.pixels.height = std::stoi(words.at(2));
  KVCACHE_ASSIGN_OR_RETURN(
      picture.layout,
      vision::LayoutOf({picture.pixels.width, picture.pixels.height}, tower->settings()));
  picture.pixels.rgb.resize(static_cast<std::size_t>(picture.pixels.width) *
                            static_cast<std::size_t>(picture.pixels.height) * 3);
  std::cin.read(reinterpret_cast<char*>(picture.pixels.rgb.data()),
                static_cast<std::streamsize>(picture.pixels.rgb.size()));
  std::vector<float> rows(static_cast<std::size_t>(picture.layout.token_count) *
                          static_cast<std::size_t>(tower->embedding_width()));
  std::cerr << picture.layout.token_count;
  for (int i = 0; i < std::stoi(words.at(4)); ++i) {
    const auto wall = std::chrono::steady_clock::now();
    const double processor = ProcessorSeconds();
    KVCACHE_RETURN_IF_ERROR(tower->Embed(picture, rows));
    std::cerr << " "
              << std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count()
              << " " << ProcessorSeconds() - processor;
  }
  std::cerr << "\n";
  std::fwrite(rows.data(), sizeof(float), rows.size(), stdout);
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return EXIT_FAILURE;
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  const Status status = words[0] == "make" ? Make(rest) : Embed(rest);
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status.message() << "\n";
  return EXIT_FAILURE;
}
