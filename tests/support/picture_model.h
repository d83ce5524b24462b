// A small gemma3 of random weights that takes pictures: its model, its projector file, and pictures for it.
//
// Users link kvcache_random_model.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "make_model/make_model.h"
#include "support/vision_file.h"

namespace kvcache::picture_test {

inline constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for item in m.content %}"
    "{% if item.type == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item.type == 'text' %}{{ item.text | trim }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}{{ '<start_of_turn>model\\n' }}";

// An uncompressed BMP of one color that gets lighter from row to row.
inline std::string BmpOf(int width, int height, int color) {
  std::string file = "BM";
  const auto number = [&](int value, int bytes) {
    for (int i = 0; i < bytes; ++i) file += static_cast<char>(value >> 8 * i);
  };
  const int row = (width * 3 + 3) / 4 * 4;
  for (const int value : {54 + row * height, 0, 54, 40, width, height}) number(value, 4);
  number(1, 2);
  number(24, 2);
  for (const int value : {0, row * height, 2835, 2835, 0, 0}) number(value, 4);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < row; ++x) number((color >> x % 3 * 8 & 255) / 2 + y % 64, 1);
  }
  return file;
}

// Writes the files. A picture has four cells.
inline void MakePictureModel(const std::string& model, const std::string& tower) {
  make_model::Request request{
      .architecture = "gemma3",
      .threads = 1,
      .chat_template = kTemplate,
      .control_tokens = {"<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"}};
  request.shape.vocab = 700;
  request.shape.context = 512;
  Status status = make_model::MakeModel(request, model);
  ASSERT_TRUE(status.ok()) << status.message();
  vision_test::VisionFileShape shape;
  shape.embedding_width = static_cast<int>(request.shape.hidden_size);
  status = vision_test::WriteVisionFile(shape, 1, tower);
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace kvcache::picture_test
