#include "grammar/text/text_formats.h"

#include <map>
#include <string_view>

#include "base/strings.h"

namespace kvcache {
namespace {

std::string Whole(std::string_view inner) {
  return StrCat("^(?:", inner, ")$");
}
std::string TwoDigits(int number) {
  return StrCat(number < 10 ? "0" : "", number);
}

// RFC 3339, full-date: months have their days, and leap years a 29th of February.
constexpr std::string_view kDate =
    R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30))"
    R"(|02-(?:0[1-9]|1\d|2[0-8]))|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))";

// A leap second is 23:59:60 in UTC. Behind UTC the local hour is 23 less the offset's, and the minute 59 less it.
// Ahead of UTC both are those of the offset, one minute earlier. They look ahead at the offset.
std::string LeapSecond() {
  std::string hours;
  std::string minutes;
  for (int i = 0; i < 24; ++i) {
    const std::string_view bar = i == 0 ? "" : "|";
    const std::string hour = TwoDigits(i);
    hours += StrCat(bar, TwoDigits(23 - i), ":\\d\\d:60(?:\\.\\d+)?-", hour);
    hours += StrCat("|", TwoDigits((i + 23) % 24), ":\\d\\d:60(?:\\.\\d+)?\\+", hour, ":00");
    hours += StrCat("|", hour, ":\\d\\d:60(?:\\.\\d+)?\\+", hour, ":(?!00)");
  }
  for (int i = 0; i < 60; ++i) {
    const std::string_view bar = i == 0 ? "" : "|";
    minutes += StrCat(bar, TwoDigits((i + 59) % 60), ":60(?:\\.\\d+)?\\+\\d\\d:", TwoDigits(i));
    minutes += StrCat("|", TwoDigits(59 - i), ":60(?:\\.\\d+)?-\\d\\d:", TwoDigits(i));
  }
  return StrCat(R"(23:59:60(?:\.\d+)?[Zz]|(?=(?:)", hours, R"())\d\d:(?=(?:)", minutes,
                R"()$)\d\d:60(?:\.\d+)?[+-](?:[01]\d|2[0-3]):[0-5]\d)");
}

// RFC 3339, full-time.
std::string Time() {
  return StrCat(
      R"((?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)|)",
      LeapSecond(), ")");
}

// ISO 8601: weeks, or a date and a time, each from the largest unit to the smallest.
constexpr std::string_view kDuration =
    R"(P(?:\d+W|(?=\d|T\d)(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?))";

constexpr std::string_view kIpv4 =
    R"((?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}))";

// RFC 4291, 2.2: eight groups; "::" once for some that are zero; the last two perhaps as IPv4.
std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const std::string last = StrCat("(?:", group, ":", group, "|", kIpv4, ")");
  std::string all = StrCat("(?:", group, ":){6}", last);
  for (int behind = 5; behind >= 0; --behind) {
    const int before = 5 - behind;
    const std::string begin =
        before == 0 ? "" : StrCat("(?:(?:", group, ":){0,", before - 1, "}", group, ")?");
    all += StrCat("|", begin, "::(?:", group, ":){", behind, "}", last);
  }
  all += StrCat("|(?:(?:", group, ":){0,5}", group, ")?::", group);
  all += StrCat("|(?:(?:", group, ":){0,6}", group, ")?::");
  return StrCat("(?:", all, ")");
}

// RFC 1123: labels of at most 63 letters, digits and inner hyphens.
constexpr std::string_view kHost =
    R"([0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?(?:\.[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?)*)";

// RFC 5321, Mailbox: at most 64 bytes before the sign and 255 behind it.
std::string Email() {
  const std::string atom = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+";
  const std::string local = StrCat("(?:", atom, R"((?:\.)", atom,
                                   R"()*|"(?:[\x20\x21\x23-\x5B\x5D-\x7E]|\\[\x20-\x7E])*"))");
  const std::string literal =
      StrCat(R"(\[(?:)", kIpv4, "|IPv6:", Ipv6(),
             R"(|(?!IPv6:)[0-9A-Za-z-]*[0-9A-Za-z]:[\x21-\x5A\x5E-\x7E]+)\])");
  return StrCat(R"((?=.{1,64}@(?:[0-9A-Za-z.-]{1,255}|\[[^\[\]\\]{1,253}\])$))", local,
                "@(?:", kHost, "|", literal, ")");
}

// RFC 3986, and RFC 3987 with `more` characters and `more_query`.
class Uris {
 public:
  Uris(std::string_view more, std::string_view more_query) : more_(more), more_query_(more_query) {}

  std::string Absolute() const {
    return StrCat("(?:[A-Za-z][A-Za-z0-9+.-]*:", Part(Characters(":@")), Rest(), ")");
  }
  std::string Reference() const {
    // A first segment with a colon would be a scheme.
    return StrCat("(?:", Absolute(), "|", Part(Characters("@")), Rest(), ")");
  }

 private:
  std::string Characters(std::string_view others) const {
    return StrCat("(?:[0-9A-Za-z._~!$&'()*+,;=", others, more_, "-]|%[0-9A-Fa-f]{2})");
  }
  // hier-part, or relative-part with other characters in its first segment.
  std::string Part(const std::string& first) const {
    const std::string segment = Characters(":@");
    const std::string segments = StrCat("(?:/", segment, "*)*");
    const std::string ip =
        StrCat(R"(\[(?:)", Ipv6(), R"(|[vV][0-9A-Fa-f]+\.[0-9A-Za-z._~!$&'()*+,;=:-]+)\])");
    const std::string authority =
        StrCat("(?:", Characters(":"), "*@)?(?:", ip, "|", Characters(""), "*)(?::[0-9]*)?");
    return StrCat("(?://", authority, segments, "|/(?:", segment, "+", segments, ")?|", first, "+",
                  segments, "|)");
  }
  std::string Rest() const {
    const std::string inner = Characters(":@/?");
    std::string query = inner;
    query.insert(query.find("-]"), more_query_);
    return StrCat(R"((?:\?)", query, "*)?(?:#", inner, "*)?");
  }

  std::string more_;
  std::string more_query_;
};

constexpr std::string_view kMoreCharacters =
    R"(\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}\u{10000}-\u{1FFFD}\u{20000}-\u{2FFFD})"
    R"(\u{30000}-\u{3FFFD}\u{40000}-\u{4FFFD}\u{50000}-\u{5FFFD}\u{60000}-\u{6FFFD})"
    R"(\u{70000}-\u{7FFFD}\u{80000}-\u{8FFFD}\u{90000}-\u{9FFFD}\u{A0000}-\u{AFFFD})"
    R"(\u{B0000}-\u{BFFFD}\u{C0000}-\u{CFFFD}\u{D0000}-\u{DFFFD}\u{E1000}-\u{EFFFD})";
constexpr std::string_view kPrivateCharacters =
    R"(\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD})";

// RFC 6570.
std::string UriTemplate() {
  const std::string literal =
      StrCat(R"((?:[\x21\x23\x24\x26\x28-\x3B\x3D\x3F-\x5B\x5D\x5F\x61-\x7A\x7E)", kMoreCharacters,
             kPrivateCharacters, "]|%[0-9A-Fa-f]{2})");
  const std::string character = "(?:[0-9A-Za-z_]|%[0-9A-Fa-f]{2})";
  const std::string variable =
      StrCat(character, R"((?:\.?)", character, R"()*(?::[1-9]\d{0,3}|\*)?)");
  return StrCat("(?:", literal, R"(|\{[+#./;?&=,!@|]?)", variable, "(?:,", variable, R"()*\})*)");
}

std::map<std::string, std::string> MakeFormats() {
  const Uris uris("", "");
  const Uris iris(kMoreCharacters, kPrivateCharacters);
  const std::string pointer = R"((?:/(?:[^/~]|~[01])*)*)";
  return {
      {"date", Whole(kDate)},
      {"time", Whole(Time())},
      {"date-time", Whole(StrCat(kDate, "[Tt]", Time()))},
      {"duration", Whole(kDuration)},
      {"email", Whole(Email())},
      {"hostname", Whole(StrCat("(?=.{1,253}$)", kHost))},
      {"ipv4", Whole(kIpv4)},
      {"ipv6", Whole(Ipv6())},
      {"uri", Whole(uris.Absolute())},
      {"uri-reference", Whole(uris.Reference())},
      {"iri", Whole(iris.Absolute())},
      {"iri-reference", Whole(iris.Reference())},
      {"uri-template", Whole(UriTemplate())},
      {"uuid", Whole("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")},
      {"json-pointer", Whole(pointer)},
      {"relative-json-pointer", Whole(StrCat(R"((?:0|[1-9]\d*)(?:#|)", pointer, ")"))},
  };
}

}  // namespace

const std::string* PatternOfFormat(const std::string& format) {
  static const auto formats = MakeFormats();
  const auto known = formats.find(format);
  return known == formats.end() ? nullptr : &known->second;
}

}  // namespace kvcache
