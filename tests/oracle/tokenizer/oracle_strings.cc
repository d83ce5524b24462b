#include "oracle_strings.h"

#include <functional>
#include <initializer_list>
#include <string_view>

#include "spm_vocabulary/invented_text.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/escaped_space.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

using spm_vocabulary::AppendUtf8;
using spm_vocabulary::InventedText;
using spm_vocabulary::Scripts;

// Returns a random code point in [first, last].
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

std::string Repeat(InventedText& source, std::size_t max_count,
                   const std::function<std::string()>& f) {
  std::string text;
  for (std::size_t n = 1 + source.Below(max_count); n > 0; --n) text += f();
  return text;
}

// Returns a letter with several combining marks, or decomposed Hangul.
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

// Returns any code point except surrogates, small ones more often.
std::string CodePoint(InventedText& source) {
  switch (source.Below(4)) {
    case 0: return Any(source, 0, 0x7F);
    case 1: return Any(source, 0x80, 0x7FF);
    case 2: return source.Below(2) == 0 ? Any(source, 0x800, 0xD7FF) : Any(source, 0xE000, 0xFFFF);
    default: return Any(source, 0x10000, 0x10FFFF);
  }
}

std::string SpecialTexts(InventedText& source) {
  return std::string(OneOf(source, {"<s>",
                                    "</s>",
                                    "<unk>",
                                    "<|im_start|>",
                                    "<|im_end|>",
                                    "<|im_end|",
                                    "user\n",
                                    " ",
                                    "  ",
                                    "\n",
                                    "\n\n",
                                    "\n\n\n",
                                    "<",
                                    "</",
                                    "s>",
                                    "|>",
                                    "<0x0A>",
                                    "<0x41>",
                                    "[INST]",
                                    "[/INST]",
                                    "[INST",
                                    "hello",
                                    "ab",
                                    "abc",
                                    "bcd",
                                    "abcd",
                                    "",
                                    "\t",
                                    "é",
                                    "<s",
                                    "<s><s>",
                                    "▁",
                                    "<b>",
                                    "</b>",
                                    "</table>",
                                    "##",
                                    "###",
                                    "<|channel>",
                                    "<extra_id_0>",
                                    "[INST]<b>"}));
}

std::string TokenTexts(InventedText& source, const std::vector<TokenizerData>& vocabularies) {
  const TokenizerData& data = vocabularies[source.Below(vocabularies.size())];
  std::string text = Repeat(source, 8, [&] {
    const std::string& spelled = data.tokens[source.Below(data.tokens.size())];
    std::string token;
    if (data.model == "gpt2") AppendBytesOf(spelled, &token);
    if (data.model != "gpt2") AppendUnescaped(spelled, &token);
    if (source.Below(3) == 0) token.resize(source.Below(token.size() + 1));  // may cut a character
    return token;
  });
  std::string valid;
  Utf8Stream stream;
  stream.Push(text, &valid);
  stream.Flush(&valid);
  return valid;
}

std::string Contractions(InventedText& source) {
  std::string text(OneOf(source, {"don", "WE", " it", "I", "é", "", " ", "1", "中", "they"}));
  text += OneOf(source, {"'", "'", "'", "''", " '", "’", "`"});
  return text + std::string(OneOf(source, {"s", "S", "t",  "T",  "re", "RE",    "rE", "Ve", "ve",
                                           "m", "M", "ll", "LL", "lL", "d",     "D",  "r",  "l",
                                           "v", "ſ", "sé", "x",  "\n", "llama", "ö",  " s"}));
}

// Returns words of mixed case, with letters inside and outside of ASCII.
std::string MixedCase(InventedText& source) {
  return Repeat(source, 6, [&] {
    return std::string(
        OneOf(source, {"a", "b", "A", "B", "é",      "É",     "ß",    "я", "Я", "中", "ǅ",
                       "ʰ", "1", "_", "/", "\u0301", "camel", "CASE", " ", ".", "\n"}));
  });
}

std::string Signs(InventedText& source) {
  return Repeat(source, 6, [&] {
    return std::string(OneOf(source, {"!",  "...", "?!", "//", "/",    "\n",     "\r\n",   " ",
                                      "  ", "\t",  "。", "、", "—",    "+",      "=>",     "€",
                                      "x",  "Abc", "é",  "7",  "\x01", "\u200D", "\u0301", "{",
                                      "}",  "(",   "$",  "`",  "|",    "\u00A0", "\u3000"}));
  });
}

// Returns text with incomplete characters and invalid bytes. Each such byte is replaced by itself,
// because the text that follows it cannot complete it.
OracleString Broken(InventedText& source) {
  constexpr std::string_view kReplacement = "\uFFFD";
  OracleString result;
  for (std::size_t n = 1 + source.Below(6); n > 0; --n) {
    const std::string whole =
        source.Below(2) == 0 ? source.Word(0) : "x" + Letter(source) + WhiteSpace(source);
    const std::string_view part =
        OneOf(source, {"\x80", "\xBF\xBF", "\xC3", "\xE2\x82", "\xE2", "\xF0\x9F\x98", "\xF0\x9F",
                       "\xFF", "\xFE\xFE", "\xF8\x88", "\xC3\xC3"});
    result.text += std::string(part) + whole;
    for (std::size_t i = 0; i < part.size(); ++i) result.seen += kReplacement;
    result.seen += whole;
  }
  return result;
}

}  // namespace

std::vector<OracleString> OracleStrings(std::size_t count,
                                        const std::vector<TokenizerData>& vocabularies) {
  const bool many = count >= 10000;
  InventedText source(2024);
  std::vector<OracleString> strings;
  const auto keep = [&strings](std::string text) { strings.push_back({text, text}); };
  for (const char* text : {"", " ", "  ", "\n", "a"}) keep(text);
  keep(std::string(1, '\0'));
  keep(std::string("a\0b", 3));
  for (const std::string_view letter : {"a", "A", "é", "7", " ", "\n", "!", "中", "😀", "▁"}) {
    for (const std::size_t n : {3, 17, 64, many ? 3000 : 300}) {
      std::string text;
      for (std::size_t i = 0; i < n; ++i) text += letter;
      keep(text);
    }
  }
  for (std::size_t i = 0; i < 4; ++i) keep(source.Text(many ? 30000 : 3000, 50));
  const std::size_t rounds = (count + 999) / 1000;
  const auto add = [&](std::size_t per_round, const std::function<std::string()>& make) {
    for (std::size_t n = per_round * rounds; n > 0; --n) keep(make());
  };
  const auto script = [&] { return source.Below(Scripts().size()); };
  add(180, [&] { return source.Sentence(script()); });
  add(80, [&] { return source.Word(script()); });
  add(60, [&] { return Repeat(source, 12, [&] { return Letter(source); }); });
  add(50, [&] { return Repeat(source, 6, [&] { return Marks(source); }); });
  add(60, [&] { return Repeat(source, 6, [&] { return Emoji(source); }); });
  add(60, [&] { return source.CodeLine() + "\n" + source.CodeLine(); });
  add(50, [&] { return Repeat(source, 4, [&] { return Digits(source); }); });
  add(60, [&] { return Repeat(source, 10, [&] { return WhiteSpace(source); }); });
  add(50, [&] { return Repeat(source, 4, [&] { return Contractions(source); }); });
  add(50, [&] { return MixedCase(source); });
  add(60, [&] { return Signs(source); });
  add(100, [&] { return Repeat(source, 30, [&] { return CodePoint(source); }); });
  add(60, [&] { return Repeat(source, 8, [&] { return SpecialTexts(source); }); });
  add(90, [&] { return TokenTexts(source, vocabularies); });
  add(5, [&] { return source.Text(200 + source.Below(4000), 50); });
  for (std::size_t n = 30 * rounds; n > 0; --n) strings.push_back(Broken(source));
  return strings;
}

}  // namespace kvcache
