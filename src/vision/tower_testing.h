// Projector files of random weights, and pictures for them, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/cpu_backend.h"
#include "support/pictures/vision_file.h"
#include "vision/vision_tower.h"

namespace kvcache::vision_test {

// A file that is removed at the end.
class TowerFile {
 public:
  explicit TowerFile(const VisionFileShape& shape, std::uint64_t seed = 1)
      : path_(::testing::TempDir() + "tower." + std::to_string(getpid()) + "." +
              std::to_string(++files) + ".gguf") {
    const Status made = WriteVisionFile(shape, seed, path_);
    EXPECT_TRUE(made.ok()) << made.message();
    file_ = std::move(GgufFile::Open(path_)).value();
  }
  ~TowerFile() { std::filesystem::remove(path_); }
  TowerFile(const TowerFile&) = delete;
  TowerFile& operator=(const TowerFile&) = delete;
  const GgufFile& file() const { return *file_; }

 private:
  static inline int files = 0;
  std::string path_;
  std::unique_ptr<GgufFile> file_;
};

inline std::unique_ptr<Backend> CpuOf(int threads) {
  return std::move(MakeCpuBackend({.threads = threads})).value();
}

inline std::unique_ptr<vision::VisionTower> LoadTower(const TowerFile& file, Backend& backend) {
  auto tower = vision::VisionTower::Load(file.file(), backend);
  EXPECT_TRUE(tower.ok()) << tower.status().message();
  return std::move(tower).value();
}

// A picture of this size, of which every pixel depends on `seed`. REQUIRES: the tower takes the size as it is.
inline vision::PreparedPicture PictureOf(const vision::VisionSettings& settings, int width,
                                         int height, std::uint32_t seed) {
  vision::PreparedPicture picture;
  picture.pixels = {width, height, {}};
  for (int i = 0; i < width * height * 3; ++i) {
    seed = seed * 1664525 + 1013904223;
    picture.pixels.rgb.push_back(static_cast<std::uint8_t>(seed >> 24));
  }
  const auto layout = vision::LayoutOf({width, height}, settings);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  picture.layout = *layout;
  EXPECT_EQ(picture.layout.size.width, width);
  EXPECT_EQ(picture.layout.size.height, height);
  return picture;
}

inline std::vector<float> Embeddings(vision::VisionTower& tower,
                                     const vision::PreparedPicture& picture) {
  std::vector<float> rows(static_cast<std::size_t>(picture.layout.token_count) *
                          static_cast<std::size_t>(tower.embedding_width()));
  const Status status = tower.Embed(picture, rows);
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

}  // namespace kvcache::vision_test
