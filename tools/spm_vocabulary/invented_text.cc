#include "spm_vocabulary/invented_text.h"

#include <algorithm>
#include <cmath>

namespace kvcache::spm_vocabulary {
namespace {

constexpr std::size_t kWordsPerScript = 300;

std::string Pick(InventedText* text, std::initializer_list<std::string_view> of) {
  return std::string(*(of.begin() + static_cast<std::ptrdiff_t>(text->Below(of.size()))));
}

}  // namespace

const std::vector<Script>& Scripts() {
  static const std::vector<Script> scripts = {
      {"Latin", U'a', U'z', 9, true},
      {"Latin capitals", U'A', U'Z', 6, true},
      {"Latin-1", U'\u00C0', U'\u00D6', 5, true},
      {"Latin Extended", U'\u0100', U'\u024F', 6, true},
      {"IPA", U'\u0250', U'\u02AF', 5, true},
      {"Greek", U'\u03B1', U'\u03C9', 8, true},
      {"Cyrillic", U'\u0410', U'\u044F', 9, true},
      {"Armenian", U'\u0561', U'\u0586', 8, true},
      {"Hebrew", U'\u05D0', U'\u05EA', 6, true},
      {"Arabic", U'\u0621', U'\u064A', 7, true},
      {"Syriac", U'\u0712', U'\u072F', 6, true},
      {"Thaana", U'\u0780', U'\u07A5', 6, true},
      {"NKo", U'\u07CA', U'\u07EA', 6, true},
      {"Devanagari", U'\u0904', U'\u094D', 7, true},
      {"Bengali", U'\u0993', U'\u09A8', 7, true},
      {"Gurmukhi", U'\u0A13', U'\u0A28', 7, true},
      {"Gujarati", U'\u0A93', U'\u0AA8', 7, true},
      {"Oriya", U'\u0B13', U'\u0B28', 7, true},
      {"Tamil", U'\u0BAE', U'\u0BB9', 7, true},
      {"Telugu", U'\u0C12', U'\u0C28', 7, true},
      {"Kannada", U'\u0C92', U'\u0CA8', 7, true},
      {"Malayalam", U'\u0D12', U'\u0D3A', 7, true},
      {"Sinhala", U'\u0D9A', U'\u0DB1', 7, true},
      {"Thai", U'\u0E01', U'\u0E3A', 12, false},
      {"Lao", U'\u0EA7', U'\u0EBD', 12, false},
      {"Tibetan", U'\u0F40', U'\u0F47', 5, true},
      {"Myanmar", U'\u1000', U'\u102A', 9, false},
      {"Georgian", U'\u10D0', U'\u10F0', 8, true},
      {"Hangul Jamo", U'\u1100', U'\u11FF', 6, true},
      {"Ethiopic", U'\u1208', U'\u1246', 5, true},
      {"Cherokee", U'\u13A0', U'\u13F4', 6, true},
      {"Canadian Aboriginal", U'\u1401', U'\u166C', 6, true},
      {"Ogham", U'\u1681', U'\u169A', 5, true},
      {"Runic", U'\u16A0', U'\u16EA', 6, true},
      {"Khmer", U'\u1780', U'\u17B3', 9, false},
      {"Mongolian", U'\u1820', U'\u1877', 7, true},
      {"Greek Extended", U'\u1F00', U'\u1F15', 6, true},
      {"Currency", U'\u20A0', U'\u20BF', 2, true},
      {"Arrows", U'\u2190', U'\u21FF', 2, true},
      {"Mathematics", U'\u2200', U'\u22FF', 3, true},
      {"Box drawing", U'\u2500', U'\u257F', 8, true},
      {"Braille", U'\u2800', U'\u28FF', 6, true},
      {"Glagolitic", U'\u2C00', U'\u2C2E', 6, true},
      {"Tifinagh", U'\u2D30', U'\u2D67', 6, true},
      {"Hiragana", U'\u3041', U'\u3096', 6, false},
      {"Katakana", U'\u30A1', U'\u30FA', 6, false},
      {"Bopomofo", U'\u3105', U'\u312F', 3, false},
      {"Han", U'\u4E00', U'\u9FA5', 3, false},
      {"Yi", U'\uA000', U'\uA48C', 3, false},
      {"Vai", U'\uA500', U'\uA60C', 4, true},
      {"Hangul", U'\uAC00', U'\uD7A3', 4, true},
      {"Fullwidth", U'\uFF21', U'\uFF5A', 5, false},
      {"Linear B", U'\U00010000', U'\U0001000B', 5, true},
      {"Gothic", U'\U00010330', U'\U0001034A', 6, true},
      {"Deseret", U'\U00010400', U'\U0001044F', 6, true},
      {"Cuneiform", U'\U00012000', U'\U0001236E', 4, true},
      {"Hieroglyphs", U'\U00013000', U'\U0001342E', 4, true},
      {"Mathematical letters", U'\U0001D400', U'\U0001D454', 5, true},
      {"Adlam", U'\U0001E900', U'\U0001E943', 6, true},
      {"Emoji", U'\U0001F600', U'\U0001F64F', 3, true},
      {"Pictographs", U'\U0001F300', U'\U0001F5FF', 2, true},
      {"Han, rare", U'\U00020000', U'\U0002A6D6', 2, false},
  };
  return scripts;
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

InventedText::InventedText(std::uint64_t seed) : random_(seed) {
  for (const Script& script : Scripts()) {
    auto& lexicon = lexicons_.emplace_back();
    while (lexicon.size() < kWordsPerScript) lexicon.push_back(InventWord(script));
  }
}

std::size_t InventedText::Zipf(std::size_t n) {
  const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
  return std::min(n - 1, static_cast<std::size_t>(std::pow(static_cast<double>(n), u)) - 1);
}

// Draws letters by Zipf's law too, from a position in the script that depends on the letter before.
// Words therefore share beginnings, endings and pairs of letters.
std::string InventedText::InventWord(const Script& script) {
  const std::size_t size = script.last - script.first + 1;
  std::string word;
  std::size_t letter = Zipf(size);
  for (std::size_t n = 1 + Below(static_cast<std::size_t>(script.letters)); n > 0; --n) {
    AppendUtf8(static_cast<char32_t>(script.first + letter), &word);
    letter = (letter * 7 + Zipf(size)) % size;
  }
  return word;
}

const std::string& InventedText::Word(std::size_t script) {
  return lexicons_[script][Zipf(kWordsPerScript)];
}

std::string InventedText::Sentence(std::size_t script) {
  std::string sentence;
  for (std::size_t n = 3 + Below(12); n > 0; --n) {
    sentence += Word(script);
    if (n > 1 && Below(12) == 0) sentence += ',';
    if (n > 1 && Scripts()[script].spaces) sentence += ' ';
  }
  return sentence + Pick(this, {".", ".", ".", "!", "?", "。", ":", ""});
}

std::string InventedText::CodeLine() {
  std::string line(Below(5) * 2, ' ');
  if (Below(8) == 0) line.assign(Below(4), '\t');
  line += Pick(this, {"if (", "for (int ", "return ", "std::", "const auto& ", "def ", "</", "<s",
                      "// ", "{\"", "0x", "#include <"});
  line += Word(0) + Pick(this, {"_", "->", ".", "(", "[", " = ", "::"}) + Word(Below(2));
  if (Below(2) == 0) line += std::to_string(Below(100000));
  return line + Pick(this, {");", ") {", "};", "]", "\"}", ">", " += 1;", " // ", "\n\n"});
}

std::string InventedText::Text(std::size_t bytes, int latin_share) {
  std::string text;
  while (text.size() < bytes) {
    const std::size_t kind = Below(100);
    if (kind < 10) {
      text += CodeLine() + "\n";
      continue;
    }
    const bool latin = kind < 10 + static_cast<std::size_t>(latin_share) * 9 / 10;
    text += Sentence(latin ? 0 : Below(Scripts().size()));
    text += Pick(this, {" ", " ", " ", "\n", "\n\n", "  "});
  }
  return text;
}

}  // namespace kvcache::spm_vocabulary
