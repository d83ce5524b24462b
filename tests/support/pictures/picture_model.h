// Small models of random weights that take pictures, one of each family: the model, its projector file, and pictures
// for it.
//
// Users link kvcache_random_model.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "make_model/make_model.h"
#include "support/pictures/vision_file.h"

namespace kvcache::picture_test {

// A text model, its tower, and what its template and its processor write.
struct PictureFamily {
  std::string name;
  std::string architecture;
  vision_test::VisionFileShape tower;
  int cells;         // of a picture of 50 x 40 pixels
  bool is_whole;     // whether a picture's cells see each other
  std::string open;  // of a turn
  std::string close;
  std::string mark;    // of a picture, in the template
  std::string before;  // of a picture's cells, in a prompt
  std::string after;
  std::string first_token;  // the last one of `before`; empty: none
  std::string last_token;   // the first one of `after`
};

inline PictureFamily Gemma3Family() {
  return {"gemma3",
          "gemma3",
          {},
          4,
          true,
          "<start_of_turn>",
          "<end_of_turn>",
          "<start_of_image>",
          "\n\n<start_of_image>",
          "<end_of_image>\n\n",
          "<start_of_image>",
          "<end_of_image>"};
}
// `merge` 2: Mistral 3. Each row of cells but the last ends with a break.
inline PictureFamily PixtralFamily(const std::string& architecture, int merge) {
  return {architecture == "llama" ? "pixtral" : architecture,
          architecture,
          {.projector = "pixtral", .image_size = 64, .patch_size = 8, .merge = merge},
          merge == 1 ? 7 * 5 + 4 : 4 * 3 + 2,
          false,
          "[INST]",
          "[/INST]",
          "[IMG]",
          "",
          "[IMG_END]",
          "",
          "[IMG_END]"};
}
inline PictureFamily Qwen25VlFamily() {
  return {"qwen25vl",
          "qwen2vl",
          {.projector = "qwen2.5vl_merger", .patch_size = 14, .merge = 2},
          6,
          false,
          "<|im_start|>",
          "<|im_end|>",
          "<|vision_start|><|image_pad|><|vision_end|>",
          "<|vision_start|>",
          "<|vision_end|>",
          "<|vision_start|>",
          "<|vision_end|>"};
}

inline constexpr std::string_view kTemplate =
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

// The template above with the family's tokens.
inline std::string TemplateOf(const PictureFamily& family) {
  std::string text(kTemplate);
  const std::pair<std::string_view, const std::string&> all[] = {{"<start_of_turn>", family.open},
                                                                 {"<end_of_turn>", family.close},
                                                                 {"<start_of_image>", family.mark}};
  for (const auto& [from, to] : all) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

// Writes a projector file for the family's model, of weights that `seed` decides.
inline void MakeTower(const std::string& tower, const PictureFamily& family, std::uint64_t seed) {
  vision_test::VisionFileShape shape = family.tower;
  shape.embedding_width = make_model::Shape().hidden_size;
  const Status status = vision_test::WriteVisionFile(shape, seed, tower);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Writes the files.
inline void MakePictureModel(const std::string& model, const std::string& tower,
                             const PictureFamily& family = Gemma3Family()) {
  make_model::Request request{.architecture = family.architecture,
                              .threads = 1,
                              .chat_template = TemplateOf(family),
                              .control_tokens = {family.open, family.close}};
  for (const std::string& token : {family.first_token, family.last_token}) {
    if (!token.empty()) request.control_tokens.push_back(token);
  }
  request.shape.vocab = 700;
  request.shape.context = 512;
  const Status status = make_model::MakeModel(request, model);
  ASSERT_TRUE(status.ok()) << status.message();
  MakeTower(tower, family, 1);
}

}  // namespace kvcache::picture_test
