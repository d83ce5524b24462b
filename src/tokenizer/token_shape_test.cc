#include "tokenizer/token_shape.h"

#include <gtest/gtest.h>

namespace kvcache::token_shape_test {
namespace {

TEST(TokenShapeTest, ClassifiesMarkersWordsAndOthers) {
  for (const char* marker : {"<|im_start|>",
                             "<start_of_turn>",
                             "[INST]",
                             "[/INST]",
                             "<s_x>",
                             "<think>",
                             "</think>",
                             "</tool_response>",
                             "<|channel>",
                             "<tool_response|>",
                             "<|\"|>",
                             "<｜User｜>",
                             "<｜end▁of▁sentence｜>",
                             "▁<PRE>",
                             "<PRE>",
                             " <unused0> ",
                             "]~b]",
                             "[e~[",
                             "[@BOS@]",
                             "{name}",
                             "|||IP_ADDRESS|||",
                             "【工具】",
                             "<extra_id_0>",
                             "<B>",
                             "<image>",
                             "<0>"}) {
    EXPECT_EQ(ShapeOf(marker), TokenShape::kMarker) << marker;
  }
  for (const char* words :
       {"",    "\n\n", "▁▁",   " ",   "\t\t", "hello", "▁the", "Grüße", "中文",
        "12",  "<",    "a\nb", "###", "```",  "--",    "<>",   "[]",    "{}",
        "<=>", "||",   "<|",   "|>",  " == ", "▁##",   "▁x:",  "x▁:",   "\u00A0\u3000"}) {
    EXPECT_EQ(ShapeOf(words), TokenShape::kWords) << words;
  }
  for (const char* other :
       {"<h1>", "</table>", "<br/>", "<hr />", "<s>", "</s>", "USER:", "### Tool:", "a_b", "</h1",
        "\xFF\xFE", "😀", "§", "⁂⁂", "\xEE\x80\x81", "x😀"}) {
    EXPECT_EQ(ShapeOf(other), TokenShape::kText) << other;
  }
}

}  // namespace
}  // namespace kvcache::token_shape_test
