#include "structure_cases.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvcache {
namespace {

using nlohmann::ordered_json;

ordered_json Says(std::string role, ordered_json content) {
  return {{"role", std::move(role)}, {"content", std::move(content)}};
}

ordered_json Call(const Text& t, int at) {
  return {
      {"id", t(at)},
      {"type", "function"},
      {"function",
       {{"name", t(at + 1)},
        {"arguments", {{t(at + 2), t(at + 3)}, {"list", {t(at + 4), {{t(at + 5), t(at + 6)}}}}}}}}};
}

ordered_json Tools(const Text& t) {
  return ordered_json::array(
      {{{"type", "function"},
        {"function",
         {{"name", t(50)},
          {"description", t(51)},
          {t(52), t(53)},
          {"parameters",
           {{"type", "object"},
            {"properties",
             {{t(54), {{"type", "string"}, {"description", t(55)}, {"enum", {t(56), t(57)}}}},
              {"kind", {{"type", t(58)}, {"default", t(59)}}}}},
            {"required", {t(54)}}}},
          {"return", {{"type", t(60)}}}}}}});
}

// Writes the inputs that the published families do not write.
constexpr std::string_view kEverywhere = R"(
{%- macro pairs() %}{% for k, v in kwargs.items() %}<|user|>{{ k }}={{ v }}{% endfor %}{% endmacro %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' }}{{ m | tojson(indent=2) }}{{ pairs(**m) }}
{%- for key in m %}{{ key }}{{ m[key] }}<|end|>{% endfor %}{{ m.items() | list }}
{{- dict(**m) | string | upper | lower | title }}{{ '%s' | format(**m) }}{% endfor %}
{%- for tool in tools or [] %}{{ tool | tojson }}{{ tool.function | dictsort }}{% endfor %}
{%- if format %}{{ strftime_now(format) }}{{ format | indent }}{{ format[::-1] | reverse }}{% endif %}
{%- if extra %}{{ pairs(**extra) }}{{ namespace(**extra) is defined }}{% endif %}
{%- for d in documents or [] %}{{ d | items | list | join('</s>') }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %})";

constexpr std::string_view kVicuna = R"(
{%- for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else -%}
ASSISTANT: {{ m.content }}</s>{% endif %}{% if m.tool_calls %}{{ '#' ~ '## Tool' }}:
{{- m.tool_calls | tojson }}{% endif %}{% endfor %}{{ 'ASSISTANT' + ':' }})";

constexpr std::string_view kFullWidth = R"({{ bos_token }}
{%- for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else -%}
{{ '<｜Assistant｜>' + (m.content or '') + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}<｜Assistant｜>)";

}  // namespace

const std::vector<Talk>& Talks() {
  static const std::vector<Talk> talks = {
      {"turns",
       [](const Text& t) {
         ChatInput input;
         input.messages = {Says("system", t(0)), Says("user", t(1)), Says("assistant", t(2)),
                           Says("user", t(3))};
         return input;
       }},
      {"no system",
       [](const Text& t) {
         ChatInput input;
         input.messages = {Says("user", t(0) + t(1)), Says("assistant", t(2)), Says("user", t(3))};
         return input;
       }},
      {"tools",
       [](const Text& t) {
         ChatInput input;
         ordered_json calls = Says("assistant", t(2));
         calls["tool_calls"] = {Call(t, 10), Call(t, 20)};
         ordered_json result = Says("tool", t(3));
         result["name"] = t(4);
         result["tool_call_id"] = t(5);
         input.messages = {Says("system", t(0)),    Says("user", t(1)), calls, result,
                           Says("assistant", t(6)), Says("user", t(7))};
         input.tools = Tools(t);
         return input;
       }},
      {"a call that is a text",
       [](const Text& t) {
         ChatInput input;
         ordered_json calls = Says("assistant", nullptr);
         calls["tool_calls"] = {
             {{"type", "function"}, {"function", {{"name", t(1)}, {"arguments", t(2)}}}}};
         input.messages = {Says("user", t(0)), calls, Says("tool", {{t(3), t(4)}, {"a", {t(5)}}})};
         input.tools = Tools(t);
         return input;
       }},
      {"parts",
       [](const Text& t) {
         ChatInput input;
         const auto part = [&t](int at) { return ordered_json{{"type", "text"}, {"text", t(at)}}; };
         input.messages = {Says("system", {part(0), part(1)}),
                           Says("user", {part(2), {{"type", "image"}, {"image", t(3)}}, part(4)}),
                           Says("assistant", {part(5), {{"type", t(6)}, {t(7), t(8)}}}),
                           Says("user", {part(9)})};
         return input;
       }},
      {"user parts",
       [](const Text& t) {
         ChatInput input;
         input.messages = {Says("user", {{{"type", "text"}, {"text", t(0)}},
                                         {{"type", "image"}},
                                         {{"type", "text"}, {"text", t(1)}}})};
         return input;
       }},
      {"reasoning",
       [](const Text& t) {
         ChatInput input;
         ordered_json answer = Says("assistant", t(1));
         answer["reasoning_content"] = t(2);
         answer["thinking"] = t(3);
         answer["name"] = t(4);
         answer[t(5)] = t(6);
         input.messages = {Says("user", t(0)), answer, Says("user", t(7)), answer};
         return input;
       }},
      {"odd roles",
       [](const Text& t) {
         ChatInput input;
         input.messages = {Says("user", t(0)), Says(t(1), t(2)), Says(t(3), t(4)),
                           Says("user", t(5))};
         return input;
       }},
      {"variables",
       [](const Text& t) {
         ChatInput input;
         input.messages = {Says("system", t(0)), Says("user", t(1))};
         input.variables = {{"builtin_tools", {t(2), t(3)}},
                            {"date_string", t(4)},
                            {"model_identity", t(5)},
                            {"reasoning_effort", t(6)},
                            {"documents", {{{"title", t(7)}, {"text", t(8)}, {t(9), t(10)}}}},
                            {"tools_in_user_message", false},
                            {"extra", {{t(12), t(13)}}},
                            {t(14), t(15)},
                            {"bos_token", t(16)},
                            {"format", t(17)}};
         input.tools = Tools(t);
         return input;
       }},
  };
  return talks;
}

std::map<std::string, std::string> Sources() {
  std::map<std::string, std::string> sources;
  for (const auto& file : std::filesystem::directory_iterator(KVCACHE_TEMPLATES)) {
    std::ifstream in(file.path());
    std::ostringstream text;
    text << in.rdbuf();
    sources[file.path().stem()] = text.str();
  }
  sources["everywhere"] = kEverywhere;
  sources["vicuna"] = kVicuna;
  sources["full width"] = kFullWidth;
  return sources;
}

}  // namespace kvcache
