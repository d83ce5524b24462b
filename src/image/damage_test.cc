// Damaged files: a decoder gives a picture or an error, and never more than the limits allow. The sanitizers look for
// wrong accesses; fuzz/*_fuzz.cc search for longer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "image/decode.h"
#include "image/pictures_testing.h"

namespace kvcache::image::damage_test {
namespace {

constexpr PictureLimits kLimits{.max_pixels = 1 << 16};

std::vector<std::string> Seeds(const std::string& format) {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder = KVCACHE_SOURCE_DIR "/fuzz/corpus/" + format + "_fuzz";
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  std::string Of(std::string file, const std::string& other) {
    switch (Below(5)) {
      case 0: return file.substr(0, Below(file.size()));
      case 1: return file.substr(0, Below(file.size())) + other.substr(Below(other.size()));
      case 2: return file.erase(Below(file.size()), 1 + Below(8));
      case 3:
        return file.insert(Below(file.size()),
                           std::string(1 + Below(8), static_cast<char>(Below(256))));
      default:
        for (std::size_t i = 0, count = 1 + Below(4); i < count; ++i) {
          const std::size_t bytes = std::size_t{1} << Below(3);
          const char value = "\x00\xff\x80\x7f\x01"[Below(5)];
          const std::size_t at = Below(file.size());
          for (std::size_t b = at; b < std::min(at + bytes, file.size()); ++b) {
            file[b] = Below(2) == 0 ? value : static_cast<char>(Below(256));
          }
        }
        return file;
    }
  }

 private:
  std::size_t Below(std::size_t end) { return random_() % std::max<std::size_t>(end, 1); }

  std::mt19937 random_;
};

struct Outcomes {
  int pictures = 0;
  int errors = 0;
};

void Decode(const std::string& file, Outcomes* outcomes) {
  const std::vector<char> exact(file.begin(),
                                file.end());  // a read beyond its end is beyond an allocation
  const auto picture =
      DecodePicture(testing::BytesOf({exact.data(), exact.size()}), "damaged", kLimits);
  if (picture.ok()) {
    ++outcomes->pictures;
    ASSERT_TRUE(CheckSize(picture->width, picture->height, kLimits).ok());
    ASSERT_EQ(picture->rgb.size(),
              picture->row_bytes() * static_cast<std::size_t>(picture->height));
  } else {
    ++outcomes->errors;
    ASSERT_EQ(picture.status().message().find("damaged: "), 0u) << picture.status().message();
    ASSERT_NE(picture.status().code(), StatusCode::kInternal);
  }
}

class DamagedPictureTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DamagedPictureTest, GivesAPictureOrAnError) {
  const std::vector<std::string> seeds = Seeds(GetParam());
  ASSERT_GE(seeds.size(), 5u);
  Outcomes whole, damaged;
  for (const std::string& seed : seeds) Decode(seed, &whole);
  EXPECT_EQ(whole.errors, 0);
  Damage damage(17);
  for (std::size_t i = 0; i < 3000; ++i) {
    std::string file = damage.Of(seeds[i % seeds.size()], seeds[i * 7 % seeds.size()]);
    if (GetParam() == std::string("png") && i % 4 != 0)
      file = testing::WithPngChecksums(std::move(file));
    Decode(file, &damaged);
  }
  // Damage is of both kinds, or the test would not show much.
  EXPECT_GT(damaged.pictures, 100);
  EXPECT_GT(damaged.errors, 100);
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedPictureTest,
                         ::testing::Values("png", "jpeg", "webp", "gif", "bmp"));

}  // namespace
}  // namespace kvcache::image::damage_test
