// Checks how a terminal's bytes become keys, pastes and lines, and how text is made safe to show on
// a terminal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "app/chat/message_reader.h"
#include "app/terminal/input_bytes.h"
#include "app/terminal/shown_text.h"
#include "app/terminal/terminal_keys.h"
#include "app/terminal/typed_line.h"
#include "app/terminal/wide_text.h"

namespace kvcache::app::input_test {
namespace {

// Returns the keys in `bytes` as text: a typed byte as it is, a byte of a burst after '+', a paste
// as [text].
std::string Keys(std::string_view bytes) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  (void)close(ends[1]);
  InputBytes input(ends[0]);
  TerminalKeys keys(input);
  std::string seen;
  for (Key key = keys.Next(); key.kind != Key::Kind::kEnd; key = keys.Next()) {
    if (key.kind == Key::Kind::kInterrupted) seen += "^C";
    if (key.kind == Key::Kind::kPaste) seen += "[" + key.pasted + "]";
    if (key.kind == Key::Kind::kByte && key.in_burst) seen += '+';
    if (key.kind == Key::Kind::kByte) seen += key.byte;
  }
  (void)close(ends[0]);
  return seen;
}

TEST(TerminalKeys, SplitKeysFromPastes) {
  EXPECT_EQ(Keys("ab\x1b[A\n"), "ab\x1b[A\n");
  EXPECT_EQ(Keys("a\x1b[200~/b\r\nc\rd\ne\x1b[201~"), "a[/b\nc\nd\ne]");
  EXPECT_EQ(Keys("\x1b[200~a\x1b[201~\rx"), "[a]+\r+x");
  EXPECT_EQ(Keys("\x1b[200~\x1b[201~"), "[]");
  EXPECT_EQ(Keys("\x1b[200~a\x1b[200~\x1b[20b\x03\x1b[201~"), "[a\x1b[200~\x1b[20b\x03]");
  EXPECT_EQ(Keys("x\x1b[201~y\x1b"), "xy\x1b");
  EXPECT_EQ(Keys("a\x03"
                 "b"),
            "a^Cb");
  EXPECT_EQ(Keys("\x1b[200~a\x03"), "^C");
  EXPECT_EQ(Keys("\x1b[200~a"), "");
}

TypedLine Line(std::string_view head, std::string_view pasted, std::string_view tail) {
  TypedLine line;
  line.AppendTyped(head);
  line.AppendPasted(pasted);
  line.AppendTyped(tail);
  return line;
}

TEST(TypedLine, KnowsWhatIsTyped) {
  EXPECT_TRUE(Line("/load ", "x", "").MayBeCommand());
  EXPECT_FALSE(Line("/lo", "ad x", "").MayBeCommand());
  EXPECT_FALSE(Line("", "/load x", "").MayBeCommand());
  EXPECT_FALSE(Line("/load", " x", "").MayBeCommand());
  EXPECT_TRUE(TypedLine{"/load"}.MayBeCommand());
  EXPECT_TRUE(Line("\"\"\"", "x", "\\").BeginsTyped("\"\"\""));
  EXPECT_TRUE(Line("\"\"\"", "x", "\\").EndsTyped("\\"));
  EXPECT_FALSE(Line("\"\"", "\"", "").BeginsTyped("\"\"\""));
  EXPECT_FALSE(Line("", "a\"", "\"\"").EndsTyped("\"\"\""));
  TypedLine line = Line("ab", "cd", "ef");
  line.RemoveLast(3);
  EXPECT_EQ(line.typed_tail, 0U);
  EXPECT_TRUE(line.has_paste);
  line.RemoveLast(1);
  EXPECT_FALSE(line.has_paste);
}

// A line editor that returns given lines and stores the line to remember.
class GivenLines : public LineEditor {
 public:
  explicit GivenLines(std::vector<TypedLine> lines) : lines_(std::move(lines)) {}
  LineEnd Read(const std::string& /*prompt*/, TypedLine& line) override {
    if (at_ == lines_.size()) return LineEnd::kEndOfInput;
    line = lines_[at_++];
    return LineEnd::kLine;
  }
  void Remember(const std::string& line) override { remembered = line; }
  void DropTypedAhead() override {}

  std::string remembered;

 private:
  std::vector<TypedLine> lines_;
  std::size_t at_ = 0;
};

TEST(ReadMessage, TakesPastesAsText) {
  struct Case {
    TypedLine line;
    std::string text;
    bool is_verbatim;
  };
  for (const Case& c :
       {Case{Line("", "/quit", ""), "/quit", true},
        Case{Line("/load ", "x\n", ""), "/load x\n", false}, Case{Line("", "a\\", ""), "a\\", true},
        Case{Line("//", "a", ""), "//a", false},
        Case{Line("", "\"\"\"a\"\"\"", ""), "\"\"\"a\"\"\"", true},
        Case{Line("\"\"\"", "a\nb\"\"\"", "\"\"\""), "a\nb\"\"\"", true}}) {
    GivenLines lines({c.line});
    const Message message = ReadMessage(lines);
    EXPECT_EQ(message.text, c.text);
    EXPECT_EQ(message.is_verbatim, c.is_verbatim) << c.text;
    // The remembered line, when typed, gives the same message.
    GivenLines again({TypedLine{lines.remembered}});
    const Message back = ReadMessage(again);
    EXPECT_EQ(back.text, c.text);
    const bool is_command = !back.is_verbatim && back.text.starts_with('/');
    EXPECT_EQ(is_command, !c.is_verbatim) << c.text;
  }
}

TEST(ReadMessage, RefusesLongMessages) {
  const std::string line(100, 'x');
  for (const auto& texts :
       {std::vector<std::string>{line}, {line + "\\", line}, {"\"\"\"" + line, line, "\"\"\""}}) {
    std::vector<TypedLine> typed;
    for (const std::string& text : texts) typed.push_back({text});
    GivenLines short_enough(typed);
    EXPECT_EQ(ReadMessage(short_enough, 100 * texts.size() + 1).end, LineEnd::kLine);
    GivenLines too_long(typed);
    EXPECT_EQ(ReadMessage(too_long, 99).end, LineEnd::kTooLong);
  }
}

TEST(ShownText, HasNoControlCharacters) {
  EXPECT_EQ(Shown("a\tb\nc\r\nd\re"), "a\tb\nc\nd\\x0de");
  EXPECT_EQ(Shown("\x1b[2J\x7f\xc2\x9b"), "\\x1b[2J\\x7f\\xc2\\x9b");
  EXPECT_EQ(Shown("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(Shown("\x9b\xff\xe2\x82\xed\xa0\x80"),
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ShownText, EscapesCharactersThatReorderText) {
  EXPECT_EQ(Shown("a\u202ab\u202e c\u2066d\u2069"), "a\\u202ab\\u202e c\\u2066d\\u2069");
  EXPECT_EQ(Shown("\u2029\u202f\u2065\u206a\u200f"), "\u2029\u202f\u2065\u206a\u200f");
}

TEST(ShownText, DoesNotDependOnWhereTheTextIsCut) {
  const std::string text =
      "\u202ea\xc2\x9b\xc3\xbc\r\n\r\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x82z\x1b\r";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      ShownText shown;
      std::string out = shown.Add(std::string_view(text).substr(0, first));
      out += shown.Add(std::string_view(text).substr(first, second - first));
      out += shown.Add(std::string_view(text).substr(second));
      EXPECT_EQ(out + shown.End(), Shown(text));
    }
  }
}

TEST(WideText, RoundTrips) {
  const std::string text = "a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80\n";
  EXPECT_EQ(FromWide(ToWide(text)), text);
  EXPECT_EQ(ToWide(std::string_view("\0\xff\xc3", 3)), L"\ufffd\ufffd\ufffd");
}

}  // namespace
}  // namespace kvcache::app::input_test
