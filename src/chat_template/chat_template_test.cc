#include "chat_template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvcache::chat_template_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

ordered_json Message(std::string role, std::string content) {
  return {{"role", std::move(role)}, {"content", std::move(content)}};
}

ChatInput Input(ordered_json messages) {
  ChatInput input;
  input.messages = std::move(messages);
  input.bos = "<s>";
  input.eos = "</s>";
  std::tm now{};
  now.tm_year = 124;
  now.tm_mday = 2;
  input.now = now;
  return input;
}

ChatInput OneMessage(std::string content) {
  return Input(ordered_json::array({Message("user", std::move(content))}));
}

// Returns the text, or the error's message.
std::string Rendered(std::string_view source, const ChatInput& input = OneMessage("hi")) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status().message();
  const auto text = parsed->Render(input);
  return text.ok() ? text->text : text.status().message();
}

StatusCode CodeOf(std::string_view source, const RenderLimits& limits = {}) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status().code();
  return parsed->Render(OneMessage("hi"), limits).status().code();
}

// tests/chat_template compares the whole language with Jinja. These tests cover the rest.
TEST(ChatTemplate, RendersCommonConstructs) {
  const struct {
    const char* source;
    const char* text;
  } cases[] = {
      {"{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{% endfor %}",
       "<s>[user] hi"},
      {"{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}"
       "{{ ns.n }}",
       "8"},
      {"{% macro f(x, y=2) %}{{ x + y }}{% endmacro %}{{ f(1) }} {{ f(1, y=5) }}", "3 6"},
      {"{% if add_generation_prompt %}\n  {{- 'go' }}\n{% endif %}\n", "go\n"},
      {"{{ strftime_now('%d %b %Y') }}", "02 Jan 2024"},
      {"{{ messages | tojson }}", R"([{"role": "user", "content": "hi"}])"},
      {"{{ 'a-b-c'.split('-')[::-1] | join('+') }}", "c+b+a"},
      {"{{ tools is none }} {{ nothing is defined }}", "True False"},
      {"{{ '%s=%03d' % ('x', 7) }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 1 / 4 }}",
       "x=007 -4 2 1024 0.25"},
  };
  for (const auto& test : cases) EXPECT_EQ(Rendered(test.source), test.text) << test.source;
}

TEST(ChatTemplate, ErrorsNameConstructAndPlace) {
  const struct {
    const char* source;
    StatusCode code;
    const char* place;
    const char* what;
  } cases[] = {
      {"{{ 1 }}\n{{ 'x' | wibble }}", StatusCode::kUnsupported, "line 2, column 10",
       "filter 'wibble' is not supported"},
      {"{{ 1 is wobbly }}", StatusCode::kUnsupported, "line 1, column 6", "test 'wobbly'"},
      {"{{ 'x'.encode() }}", StatusCode::kUnsupported, "line 1, column 7", "'encode'"},
      {"{{ ''.__class__ }}", StatusCode::kUnsupported, "line 1, column 6", "'__class__'"},
      {"{% extends 'x' %}", StatusCode::kUnsupported, "line 1, column 4", "'extends'"},
      {"{% for x in y recursive %}{% endfor %}", StatusCode::kUnsupported, "line 1, column 15",
       "recursive"},
      {"{% fro x %}", StatusCode::kCorrupt, "line 1, column 4", "'fro'"},
      {"{% if 1 %}", StatusCode::kCorrupt, "line 1, column 11", "endif"},
      {"\n\n  {{ 1 + }}", StatusCode::kCorrupt, "line 3, column 10", "expected a value"},
      {"{{ 'x }}", StatusCode::kCorrupt, "line 1, column 4", "is not closed; expected '"},
      {"{% break %}", StatusCode::kCorrupt, "line 1, column 4", "outside of a loop"},
      {"{{ nobody.home }}", StatusCode::kInvalidArgument, "line 1, column 10",
       "'nobody' is undefined"},
      {"{{ 1 + 'x' }}", StatusCode::kInvalidArgument, "line 1, column 6",
       "operator '+' does not apply to an integer and a string"},
      {"{{ raise_exception('not today') }}", StatusCode::kInvalidArgument, "line 1, column 19",
       "rejects this conversation: not today"},
      {"{{ 9223372036854775807 + 1 }}", StatusCode::kUnsupported, "line 1, column 24",
       "more than 64 bits"},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(CodeOf(test.source), test.code) << test.source;
    EXPECT_THAT(Rendered(test.source), HasSubstr(test.place)) << test.source;
    EXPECT_THAT(Rendered(test.source), HasSubstr(test.what)) << test.source;
  }
}

TEST(ChatTemplate, GeneratorsAndGroupsAreThoseOfJinja) {
  const struct {
    const char* source;
    const char* text;
  } cases[] = {
      {"{{ {'a': 1}[x] is defined }} {{ {'a': 1}[[1]] is defined }} {{ x in {'a': 1} }}",
       "False False False"},
      {"{% set g = [1, 2, 3] | select('odd') %}{{ g | list }}{{ g | list }}{{ g is sequence }}",
       "[1, 3][]False"},
      {"{{ 'yes' if [] | select else 'no' }}", "yes"},
      {"{% for i in [1, 2, 3] if i != 2 %}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% "
       "endfor %}",
       "1False2 2True2 "},
      {"{% for k, v in [{'a': 'X'}, {'a': 'y'}, {'a': 'x'}] | groupby('a') %}{{ k }}{{ v | length "
       "}}"
       "{% endfor %}",
       "X2y1"},
      {"{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}",
       "[[1, 2], [3, 0]][[1, 2], [3]]"},
      {"{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-')[0] }}", "('a', '-', 'b-c')a-b"},
      {"{{ '{0}{0}{1[1]}{a.b}'.format(1, [2, 3], a={'b': 4}) }}", "1134"},
      {"{{ '{} {x!r:>5} {{{:,}}} {:.2f} {:#x} {:%}'.format(1, 1234567, 2.0, 255, 0.5, x='é') }}",
       "1   'é' {1,234,567} 2.00 0xff 50.000000%"},
  };
  for (const auto& test : cases) EXPECT_EQ(Rendered(test.source), test.text) << test.source;
}

// More work than the limit of steps allows is done while there is time.
TEST(ChatTemplate, TimeBoundsTheWorkOfLongPrompts) {
  const char* const source =
      "{% for a in range(300) %}{% for b in range(300) %}{% set x = a + b %}{% endfor %}{% endfor "
      "%}";
  EXPECT_EQ(CodeOf(source, {.work = 1 << 10, .seconds = 30.0}), StatusCode::kOk);
  EXPECT_EQ(CodeOf(source, {.work = 1 << 10, .seconds = 0.0}), StatusCode::kUnsupported);
}

// A text that grows in place costs its length; those that share its buffer do not change.
TEST(ChatTemplate, TextsGrowInPlace) {
  const char* const source =
      "{% set ns = namespace(s='', old='') %}{% for i in range(20000) %}{% set ns.s = ns.s ~ "
      "'abcdefgh' %}"
      "{% if i == 1 %}{% set ns.old = ns.s %}{% endif %}{% endfor %}"
      "{% set other = ns.old + '!' %}{{ ns.s | length }} {{ ns.old }} {{ other }}";
  EXPECT_EQ(Rendered(source), "160000 abcdefghabcdefgh abcdefghabcdefgh!");
  EXPECT_EQ(CodeOf(source, {.work = 1 << 24, .seconds = 0.0}), StatusCode::kOk);
}

// A template may come from anyone. It must not hang, or exhaust memory or the stack.
TEST(ChatTemplate, HostileTemplatesAreStopped) {
  const std::string open(200, '(');
  const std::string many = "{{ 1" + std::string(3000, '+') + " }}";
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  std::string nested;
  for (int i = 0; i < 300; ++i) nested += "{% if 1 %}";
  const std::string sources[] = {
      "{% for i in range(1000000000000) %}{% endfor %}",
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
      "{% endfor %}{% endfor %}{% endfor %}",
      "{{ 'x' * 99999999999 }}",
      "{{ [0] * 99999999999 }}",
      "{{ '%999999999d' % 1 }}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}",
      "{{ 'a' | map(*(['map'] * 9999)) | list }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000000) %}{% set ns.l = ns.l + ['x' * "
      "1000000 ~ i] %}"
      "{% endfor %}",
      "{% set ns = namespace(g=['a']) %}{% for i in range(9999) %}{% set ns.g = ns.g | "
      "map('upper') %}{% endfor %}"
      "{{ ns.g | list }}",
      "{{ ('a' * 9999) | replace('', 'b' * 99999) }}",
      "{{ 2 ** 9999 }}",
      "{{ " + open,
      many,
      sum + " }}",
      nested,
  };
  for (const std::string& source : sources) {
    const StatusCode code = CodeOf(source, {.work = 1 << 22, .seconds = 0.1});
    EXPECT_TRUE(code == StatusCode::kUnsupported || code == StatusCode::kCorrupt ||
                code == StatusCode::kInvalidArgument)
        << source.substr(0, 60) << " " << StatusCodeName(code);
  }
}

// Namespaces and macros can own themselves. The leak sanitizer checks that they are freed.
TEST(ChatTemplate, CyclesAreFreed) {
  EXPECT_EQ(Rendered("{% set a = namespace() %}{% set a.self = a %}{{ a.self.self is defined }}"),
            "True");
  EXPECT_EQ(Rendered("{% macro f() %}{% macro g() %}{% endmacro %}{% set ns.g = g %}{% endmacro %}"
                     "{% set ns = namespace() %}{{ f() }}{% set ns.loop = [ns] %}."),
            ".");
}

// Returns the text with its foreign ranges in brackets.
std::string Ranges(std::string_view source, const ChatInput& input) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status().message();
  const auto text = parsed->Render(input);
  if (!text.ok()) return text.status().message();
  std::string shown;
  std::size_t at = 0;
  for (const TextRange& range : text->foreign) {
    shown += text->text.substr(at, range.begin - at) + "[" +
             text->text.substr(range.begin, range.end - range.begin) + "]";
    at = range.end;
  }
  return shown + text->text.substr(at);
}

// No operation turns foreign text into text of the template.
TEST(ChatTemplate, ForeignTextStaysForeign) {
  ChatInput input = OneMessage("<x>\na");
  input.variables = {{"when", "<x>"},   {"day", "<%d>"},    {"tool", {{"<x>", "v"}}},
                     {"percent", "%%"}, {"twice", "%s|%s"}, {"zeros", "%05d"},
                     {"n", 7},          {"cut", "X"},       {"tail", "\x96\x81"},
                     {"quote", "\x80"}};
  const struct {
    const char* source;
    const char* shown;
  } cases[] = {
      {"{{ strftime_now(when) }}", "[<x>]"},
      {"{{ strftime_now(format='a' + day) }}", "[a<02>]"},
      {"{{ strftime_now('%d') }}", "02"},
      {"{% macro f() %}{{ kwargs | list | first }}{% endmacro %}{{ f(**tool) }}", "[<x>]"},
      {"{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(**tool) }}", "[{'<x>': 'v'}]"},
      {"{% macro f() %}{{ kwargs | list | first }}{% endmacro %}{{ f(mine=1) }}", "mine"},
      {"{{ dict(**tool) | list | first }}", "[<x>]"},
      {"{{ dict(**tool) | tojson }}", "[{\"<x>\": \"v\"}]"},
      {"{{ dict(tool).items() | list }}", "[[('<x>', 'v')]]"},
      {"{{ '%s' | format(**tool) }}", "[{'<x>': 'v'}]"},
      {"{{ percent % () }}", "[%]"},
      {"{{ '%%' % () }}", "%"},
      {"{{ twice % (eos_token, eos_token) }}", "[</s>|</s>]"},
      {"{{ twice | format(eos_token, bos_token) }}", "[</s>|<s>]"},
      {"{{ zeros % 7 }}", "[00007]"},
      {"{{ '%03d' % n }}", "007"},
      {"{{ messages[0].content | indent(2) }}", "[<x>\n]  [a]"},
      {"{{ ('\xE2' ~ tail) | upper }}", "[\xE2\x96\x81]"},
      {"{{ ('\xC2' ~ quote) | tojson(ensure_ascii=true) }}", "[\"\\u0080\"]"},
      {"{{ [('\xC2' ~ quote)] }}", "[['\\x80']]"},
      {"{{ messages[0].content | string | list | sort | join | upper | lower }}", "[\n<>ax]"},
      {"{{ [when, when] | unique | first ~ ([when] | max) ~ (tool | dictsort) }}",
       "[<x><x>[('<x>', 'v')]]"},
      {"{% for k in tool %}{{ loop.cycle(k, 'a') ~ k[::-1] ~ k.replace('x', '') }}{% endfor %}",
       "[<x>>x<<>]"},
      {"{{ namespace(**tool)['<x>'] ~ (tool | attr('<x>')) ~ ([tool] | map(attribute=when) | join) "
       "}}",
       "[vv]"},
      // If a foreign argument determines a cut, the bytes beside the cut are foreign, too.
      {"{{ '<X/s>' | replace(cut, '') }}{{ '<X/s>'.replace(cut, '') }}", "[</]s>[</]s>"},
      {"{{ 'X</s>'.strip(cut) ~ '|' ~ 'X</s>' | trim(cut) }}", "[<]/s>|[<]/s>"},
      {"{{ 'X</s>X'.lstrip(cut) ~ 'X</s>X'.rstrip(cut) }}", "[<]/s>XX</s[>]"},
      {"{{ 'aXb'.split(cut) | join }}{{ '</s>X'.rsplit(cut)[0] }}", "[ab]</s[>]"},
      {"{{ 'X</s>'.removeprefix(cut) ~ '</s>X'.removesuffix(cut) }}", "[<]/s></s[>]"},
      {"{{ '</s>'.strip(cut) ~ '</s>'.replace(cut, 'y') }}", "</s></s>"},
      {"{% set x = namespace(a=when) %}{% filter upper %}{{ x.a }}{% endfilter %}", "[<X>]"},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(Ranges(test.source, input), test.shown) << test.source;
  }
}

TEST(ChatTemplate, CollectsLiterals) {
  const auto parsed = ChatTemplate::Parse(
      "<|im_{{ 'st' ~ 'art' }}|>{{ '<|' + x + '|>' }}{% if 'a' in y %}\nb{% endif %}"
      "{% set z = 'c' + 'd' %}{{ f('e', g='h') if 'i' else 'j' }}k{# l #}");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_THAT(parsed->literals(), ::testing::UnorderedElementsAre("<|im_start|><|", "|>b", "cd",
                                                                  "e", "g", "h", "j", "k"));
  const auto looking = ChatTemplate::Parse(
      "{% if x == 'a' or x['b'] in ['c'] or x.startswith('d') or f('e') or not 'n' %}{% endif %}"
      "{{ x.split('g')[0] | replace('h', 'i') ~ ('j' in x) ~ x['k'] ~ x.get('l') ~ (x or 'm') }}");
  ASSERT_TRUE(looking.ok()) << looking.status().message();
  EXPECT_THAT(looking->literals(), ::testing::UnorderedElementsAre("e", "h", "i", "l", "m"));
}

TEST(ChatTemplate, ForeignRangesAreExact) {
  const ChatInput hi = OneMessage("hi");
  EXPECT_EQ(Ranges("<{{ messages[0].content }}>", hi), "<[hi]>");
  EXPECT_EQ(Ranges("{{ '<' + messages[0].role + '|' + messages[0].content + '>' }}", hi),
            "<user|[hi]>");
  EXPECT_EQ(Ranges("{{ messages[0].content ~ 7 ~ loop_index }}", hi), "[hi]7");
  EXPECT_EQ(Ranges("{{ messages[0] | tojson }}", hi), R"([{"role": "]user[", "content": "hi"}])");
  EXPECT_EQ(Ranges("{% set x %}a{{ messages[0].content }}b{% endset %}{{ x[1:] | upper }}", hi),
            "[HI]B");
  EXPECT_EQ(Ranges("{{ 'a,b'.split(',') | join(messages[0].content) }}", hi), "a[hi]b");
  EXPECT_EQ(Ranges("{{ messages[0].content.replace('i', '<i>') }}", hi), "[h]<i>");
  ChatInput odd = Input(ordered_json::array({Message("narrator", "x")}));
  EXPECT_EQ(Ranges("<{{ messages[0].role }}>", odd), "<[narrator]>");
  odd.variables = {{"when", "now"}};
  EXPECT_EQ(Ranges("{{ when }}", odd), "[now]");
}

TEST(ChatTemplate, RejectsMalformedInput) {
  const auto parsed = ChatTemplate::Parse("{{ messages }}");
  ASSERT_TRUE(parsed.ok());
  for (const char* messages : {"{}", "[1]", "[{}]", R"([{"role": 1}])"}) {
    EXPECT_EQ(parsed->Render(Input(ordered_json::parse(messages))).status().code(),
              StatusCode::kInvalidArgument)
        << messages;
  }
  ordered_json deep = "x";
  for (int i = 0; i < 200; ++i) deep = ordered_json::array({deep});
  ChatInput input = OneMessage("x");
  input.variables["deep"] = deep;
  EXPECT_THAT(parsed->Render(input).status().message(), HasSubstr("nested deeper"));
}

TEST(ChatTemplate, MentionsTheVariablesThatItReads) {
  const auto parsed =
      ChatTemplate::Parse("{% macro f() %}{{ tools }}{% endmacro %}{{ x.enable_thinking }}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->Mentions("tools"));
  EXPECT_FALSE(parsed->Mentions("enable_thinking"));
}

}  // namespace
}  // namespace kvcache::chat_template_test
