#include "oracle_strings.h"

#include <functional>
#include <initializer_list>
#include <string_view>

#include "model/utf8_stream.h"
#include "spm_vocabulary/invented_text.h"

namespace kvcache {
namespace {

using spm_vocabulary::AppendUtf8;
using spm_vocabulary::InventedText;
using spm_vocabulary::Scripts;

// A code point of [first, last].
std::string Any(InventedText& source, char32_t first, char32_t last) {
  std::string text;
  AppendUtf8(first + static_cast<char32_t>(source.Below(last - first + 1)), &text);
  return text;
}

std::string_view OneOf(InventedText& source, std::initializer_list<std::string_view> of) {
  return *(of.begin() + static_cast<std::ptrdiff_t>(source.Below(of.size())));
}

std::string Letter(InventedText& source) {
  const auto& script = Scripts()[source.Below(Scripts().size())];
  return Any(source, script.first, script.last);
}

std::string Repeat(InventedText& source, std::size_t most, const std::function<std::string()>& f) {
  std::string text;
  for (std::size_t n = 1 + source.Below(most); n > 0; --n) text += f();
  return text;
}

// A letter with a stack of marks, or Hangul from its parts.
std::string Marks(InventedText& source) {
  std::string text = Letter(source);
  if (source.Below(8) == 0) {
    return text + Any(source, 0x1100, 0x1112) + Any(source, 0x1161, 0x1175);
  }
  return text + Repeat(source, 4, [&] {
           return source.Below(4) == 0 ? Any(source, 0x20D0, 0x20F0) : Any(source, 0x0300, 0x036F);
         });
}

std::string Emoji(InventedText& source) {
  const std::string one = Any(source, 0x1F440, 0x1F4FF);
  switch (source.Below(6)) {
    case 0: return one + Any(source, 0x1F3FB, 0x1F3FF);                               // skin
    case 1: return one + "\u200D" + Any(source, 0x1F466, 0x1F469) + "\u200D❤\uFE0F";  // joined
    case 2: return Any(source, 0x1F1E6, 0x1F1FF) + Any(source, 0x1F1E6, 0x1F1FF);     // flag
    case 3: return std::string(1, static_cast<char>('0' + source.Below(10))) + "\uFE0F\u20E3";
    case 4: return "🏴" + Any(source, 0xE0061, 0xE007A) + "\U000E007F";
    default: return one;
  }
}

std::string Digits(InventedText& source) {
  std::string text =
      Repeat(source, 20, [&] { return std::string(1, static_cast<char>('0' + source.Below(10))); });
  text +=
      OneOf(source, {"", ".", ",", "e-", "%", " ", "/", ":", "₽", "٣٤٥", "१२३", "①②", "Ⅷ", "½"});
  return text;
}

std::string WhiteSpace(InventedText& source) {
  return std::string(OneOf(source, {" ",      " ",      " ",      "  ",     "\n",
                                    "\n\n",   "\t",     "\r\n",   "\v\f",   "\u00A0",
                                    "\u2003", "\u3000", "\u200B", "\uFEFF", "\u2028",
                                    "▁",      "▁▁",     "a",      "\u0085", "                "}));
}

// Any code point but surrogates, the small ones more often.
std::string CodePoint(InventedText& source) {
  switch (source.Below(4)) {
    case 0: return Any(source, 0, 0x7F);
    case 1: return Any(source, 0x80, 0x7FF);
    case 2: return source.Below(2) == 0 ? Any(source, 0x800, 0xD7FF) : Any(source, 0xE000, 0xFFFF);
    default: return Any(source, 0x10000, 0x10FFFF);
  }
}

std::string SpecialTexts(InventedText& source) {
  return std::string(OneOf(
      source,
      {"<s>",    "</s>",   "<unk>",  "<|im_start|>", "<|im_end|>", "<|im_end|", "user\n", " ",
       "  ",     "\n",     "\n\n",   "\n\n\n",       "<",          "</",        "s>",     "|>",
       "<0x0A>", "<0x41>", "[INST]", "[/INST]",      "[INST",      "hello",     "ab",     "abc",
       "bcd",    "abcd",   "",       "\t",           "é",          "<s",        "<s><s>", "▁"}));
}

std::string TokenTexts(InventedText& source, const std::vector<TokenizerData>& vocabularies) {
  const TokenizerData& data = vocabularies[source.Below(vocabularies.size())];
  std::string text = Repeat(source, 8, [&] {
    std::string token = data.tokens[source.Below(data.tokens.size())];
    if (source.Below(3) == 0) token.resize(source.Below(token.size() + 1));  // may break a letter
    return token;
  });
  std::string valid;
  Utf8Stream stream;
  stream.Push(text, &valid);
  stream.Flush(&valid);
  return valid;
}

}  // namespace

std::vector<std::string> OracleStrings(const std::vector<TokenizerData>& vocabularies) {
  InventedText source(2024);
  std::vector<std::string> strings = {
      "", " ", "  ", "\n", "a", std::string(1, '\0'), std::string("a\0b", 3)};
  const auto add = [&strings](std::size_t count, const std::function<std::string()>& make) {
    for (; count > 0; --count) strings.push_back(make());
  };
  for (std::size_t script = 0; script < Scripts().size(); ++script) {
    add(40, [&] { return source.Sentence(script); });
    add(20, [&] { return source.Word(script); });
  }
  add(800, [&] { return Repeat(source, 12, [&] { return Letter(source); }); });
  add(600, [&] { return Repeat(source, 6, [&] { return Marks(source); }); });
  add(800, [&] { return Repeat(source, 6, [&] { return Emoji(source); }); });
  add(800, [&] { return source.CodeLine() + "\n" + source.CodeLine(); });
  add(500, [&] { return Repeat(source, 4, [&] { return Digits(source); }); });
  add(800, [&] { return Repeat(source, 10, [&] { return WhiteSpace(source); }); });
  add(1500, [&] { return Repeat(source, 30, [&] { return CodePoint(source); }); });
  add(1500, [&] { return Repeat(source, 8, [&] { return SpecialTexts(source); }); });
  add(1500, [&] { return TokenTexts(source, vocabularies); });
  add(100, [&] { return source.Text(200 + source.Below(4000), 50); });
  add(4, [&] { return source.Text(30000, 50); });
  for (const std::string_view letter : {"a", " ", "\n", "中", "😀", "▁"}) {
    for (const std::size_t n : {3, 17, 64, 1000, 5000}) {
      std::string text;
      for (std::size_t i = 0; i < n; ++i) text += letter;
      strings.push_back(text);
    }
  }
  return strings;
}

}  // namespace kvcache
