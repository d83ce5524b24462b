// Each format takes what its standard takes, and nothing else.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_automaton.h"
#include "grammar/grammar_testing.h"

namespace kvcache::text_format_test {
namespace {

using Json = nlohmann::ordered_json;

struct Corpus {
  const char* format;
  std::vector<std::string> right;
  std::vector<std::string> wrong;
};

const std::string kLabel(63, 'a');
const std::string kLongHost = kLabel + "." + kLabel + "." + kLabel + "." + std::string(61, 'b');

std::vector<Corpus> DatesAndTimes() {
  return {
      {"date",
       {"2024-12-31", "2024-01-31", "2024-04-30", "2024-02-29", "2000-02-29", "2023-02-28",
        "0000-02-29", "9999-11-30", "1900-02-28", "2400-02-29", "1999-10-29"},
       {"2023-02-29", "1900-02-29", "2100-02-29", "2024-02-30", "2024-04-31", "2024-06-31",
        "2024-13-01", "2024-00-10", "2024-01-00", "2024-01-32", "24-01-01", "2024-1-1",
        "2024-01-01 ", "20240101", "2024-01-01T00:00:00Z", "", "১২৩৪-01-01"}},
      {"time",
       {"00:00:00Z", "23:59:59Z", "12:00:00.5z", "12:00:00.123456789012+01:30", "23:59:60Z",
        "01:29:60+01:30", "15:59:60-08:00", "23:29:60-00:30", "00:59:60.25+01:00", "23:59:60+00:00",
        "00:00:60+00:01", "12:00:00-00:00", "22:59:60-01:00", "23:58:60+23:59"},
       {"24:00:00Z", "12:60:00Z", "12:00:61Z", "12:00:60Z", "23:59:60+01:00", "00:29:60+01:30",
        "23:59:60-08:00", "12:00Z", "12:00:00", "12:00:00.Z", "12:00:00+1:00", "12:00:00+24:00",
        "12:00:00+01", "12:00:00,5Z", "T12:00:00Z"}},
      {"date-time",
       {"2024-12-31T23:59:59Z", "1985-04-12t23:20:50.52z", "1990-12-31T15:59:60-08:00",
        "2024-02-29T00:00:00+00:00"},
       {"2023-02-29T00:00:00Z", "2024-12-31 00:00:00Z", "2024-12-31T00:00:00", "2024-12-31",
        "2024-12-31T24:00:00Z", "1990-12-31T15:59:60Z"}},
      {"duration",
       {"P1Y", "P1Y2M3DT4H5M6S", "PT36H", "P5W", "PT0S", "P0D", "P1Y2D", "PT1H5S", "P400D",
        "P12345678901D"},
       {"P", "PT", "1Y", "P1", "PT1D", "P1YT", "P1W2D", "P1D2M", "PT1S2M", "p1y", "-P1Y", "P1.5D",
        "P1Y ", "P২Y"}},
  };
}

std::vector<Corpus> Hosts() {
  return {
      {"hostname",
       {"a", "localhost", "a-b.example.com", "1.2.3", "xn--bcher-kva.example", "A0", kLabel,
        kLongHost},
       {"", "-a", "a-", "a..b", ".a", "a.", "a_b", "bücher", "a b", kLabel + "a", kLongHost + "b",
        "a.-b"}},
      {"ipv4",
       {"0.0.0.0", "255.255.255.255", "192.168.1.10", "249.99.9.1"},
       {"256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.04", "1.2.3.4 ", "1.2.3.a", ""}},
      {"ipv6",
       {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8",
        "1:2::7:8", "fe80::abcd:EF01", "::ffff:192.0.2.1", "1:2:3:4:5:6:1.2.3.4", "::1.2.3.4",
        "1::1.2.3.4", "2001:db8::8:800:200C:417A", "1:2:3:4:5::1.2.3.4"},
       {":", ":::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "g::", "1:2",
        "::1.2.3.256", "1:2:3:4:5:6:7:1.2.3.4", "fe80::1%eth0", ":1", "1:", "::1.2.3", "1.2.3.4",
        "1:2:3:4:5:6:7::8:9"}},
      {"email",
       {"a@b", "a@b.c", "first.last+tag@sub-domain.example.org", "!#$%&'*+/=?^_`{|}~-@x.y",
        "\"quoted string\"@x.y", "\"a@b\"@x.y", "\"a\\\"b\\\\\"@x.y", "\"\"@x.y", "a@[1.2.3.4]",
        "a@[IPv6:::1]", "a@[tag:content]", std::string(64, 'a') + "@b.c"},
       {"",
        "a",
        "@b",
        "a@",
        "a@b@c",
        ".a@b",
        "a.@b",
        "a..b@c",
        "a b@c",
        "a@-b",
        "a@b-",
        "a@b..c",
        "a@b.",
        "\"a@b",
        "a\"b\"@c",
        "a@[1.2.3.256]",
        "a@[IPv6:1]",
        "a@1.2.3.4]",
        "ä@b.c",
        "a@b_c",
        std::string(65, 'a') + "@b.c",
        "a@" + kLongHost + "bcd"}},
  };
}

std::vector<Corpus> Uris() {
  return {
      {"uri",
       {"http://a", "https://a-b.example:8080/p/q;r=1?x=y&z=%20#frag/?", "urn:isbn:0451450523",
        "mailto:a@b.c", "file:///etc/passwd", "ftp://user:pw@host/", "http://[::1]:80/",
        "http://[v1.x:y]/", "tel:+1-816-555-1212", "a:", "a+b-c.d:e", "http://", "http://a:/",
        "data:text/plain;base64,aGk=", "x:/a//b", "http://1.2.3.4/", "HTTP://%41/~!$&'()*+,;=:@"},
       {"",
        "a",
        "//a",
        "/a",
        "1a:b",
        "http://a b",
        "http://a/%2",
        "http://a/%zz",
        "http://a/\"",
        "http://a/<b>",
        "http://a/{b}",
        "http://a/^",
        "http://[::1",
        "http://[::g]/",
        "http://a:b/c@d:x y",
        "http://é/",
        "http://a:8a/",
        "http://a\\b",
        "a:b#c#d",
        "http://[1.2.3.4]/"}},
      {"uri-reference",
       {"", "a", "../a", "//a/b", "/a?b#c", "?q", "#f", "http://a", "a/b:c", "./b:c"},
       {"b c", "1:a", "a%", "\\", "//[::1", "#a#b", ":a"}},
      {"iri",
       {"http://é.example/ü?π#中", "urn:日本", "http://a", "http://a?\xee\x80\x80"},
       {"é", "http://a b", "http://a/\xee\x80\x80", "http://a/\xef\xbf\xbf"}},
      {"iri-reference", {"", "é/ü", "//é", "#日"}, {"a b", "é%"}},
      {"uri-template",
       {"", "http://a/{b}", "/{+path}/x{?q,r*}{&s:3}", "{#a.b,c%20d}", "é{x}", "~"},
       {"{", "}", "{}", "{a", "{a:0}", "{a:10000}", "{a b}", "a b", "%2", "{-a}", "<", "'"}},
  };
}

std::vector<Corpus> Others() {
  return {
      {"uuid",
       {"123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-42661417400F",
        "00000000-0000-0000-0000-000000000000"},
       {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400",
        "g23e4567-e89b-12d3-a456-426614174000", "{123e4567-e89b-12d3-a456-426614174000}", ""}},
      {"json-pointer",
       {"", "/", "/a/b", "/a~0b~1c", "/é\n", "//"},
       {"a", "/~", "/~2", "#/a", "/a~"}},
      {"relative-json-pointer",
       {"0", "1/a", "12#", "0/", "1/a~1b"},
       {"", "/a", "01/a", "-1/a", "1a", "1##", "1/~2"}},
      // These refuse nothing.
      {"regex", {"(", "a+", ""}, {}},
      {"password", {"", "x y"}, {}},
      {"phone", {"x"}, {}},
      {"idn-hostname", {"bücher.example"}, {}},
      {"idn-email", {"ä@ö.example"}, {}},
  };
}

bool Allows(GrammarAutomaton& automaton, const std::string& value) {
  GrammarAutomaton::State state = automaton.start();
  for (const char c : Json(value).dump()) {
    state = automaton.Next(state, static_cast<unsigned char>(c));
  }
  return state != GrammarAutomaton::kDead && automaton.Accepts(state);
}

void Check(const std::vector<Corpus>& corpora) {
  for (const Corpus& corpus : corpora) {
    const Json schema = {{"type", "string"}, {"format", corpus.format}};
    auto grammar = GrammarOfSchema(schema.dump());
    ASSERT_TRUE(grammar.ok()) << corpus.format << grammar.status().message();
    GrammarAutomaton automaton(*std::move(grammar));
    for (const std::string& value : corpus.right) {
      EXPECT_TRUE(Allows(automaton, value)) << corpus.format << " " << value;
    }
    for (const std::string& value : corpus.wrong) {
      EXPECT_FALSE(Allows(automaton, value)) << corpus.format << " " << value;
    }
    EXPECT_FALSE(automaton.full()) << corpus.format;
  }
}

TEST(TextFormat, DatesAndTimes) {
  Check(DatesAndTimes());
}
TEST(TextFormat, Hosts) {
  Check(Hosts());
}
TEST(TextFormat, Uris) {
  Check(Uris());
}
TEST(TextFormat, Others) {
  Check(Others());
}

// Every fifth year of five centuries.
TEST(TextFormat, EveryDayIsADate) {
  GrammarAutomaton automaton(*GrammarOfSchema(R"({"type": "string", "format": "date"})"));
  const auto two = [](int number) { return (number < 10 ? "0" : "") + std::to_string(number); };
  for (int year = 1895; year <= 2405; year += 5) {
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    for (int month = 1; month <= 12; ++month) {
      const int days = month == 2
                           ? (leap ? 29 : 28)
                           : (month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31);
      for (int day = 0; day <= 32; ++day) {
        const std::string text = std::to_string(year) + "-" + two(month) + "-" + two(day);
        EXPECT_EQ(Allows(automaton, text), day >= 1 && day <= days) << text;
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::text_format_test
