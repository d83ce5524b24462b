#include "chat_template/system_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvcache::system_messages_test {
namespace {

using Json = nlohmann::ordered_json;

// Writes a conversation as "u:text|a:text|…"; also reads one.
std::string Short(const Json& messages) {
  std::string text;
  for (const Json& message : messages) {
    const auto role = message["role"].get<std::string>();
    if (!text.empty()) text += '|';
    text += role.substr(0, 1) + ":" + message["content"].get<std::string>();
  }
  return text;
}

Json Long(std::string text) {
  Json messages = Json::array();
  text += '|';
  for (std::size_t end = text.find('|'); end != text.npos; end = text.find('|')) {
    const char role = text[0];
    messages.push_back({{"role", role == 's'   ? "system"
                                 : role == 'u' ? "user"
                                 : role == 't' ? "tool"
                                               : "assistant"},
                        {"content", text.substr(2, end - 2)}});
    text.erase(0, end + 1);
  }
  return messages;
}

std::string Placed(const SystemPlaces& places, const std::string& text) {
  Json messages = Long(text);
  PlaceSystemMessages(places, messages);
  return Short(messages);
}

constexpr SystemPlaces kNowhere = {.first = false,
                                   .more_first = false,
                                   .after_user = false,
                                   .after_answer = false,
                                   .after_result = false,
                                   .user_after_result = false};
constexpr SystemPlaces kOnlyFirst = {.first = true,
                                     .more_first = false,
                                     .after_user = false,
                                     .after_answer = false,
                                     .after_result = false,
                                     .user_after_result = true};

TEST(SystemMessages, StayWhereTheTemplateWritesThem) {
  for (const char* text : {"s:S|u:U", "s:S|s:T|u:U|s:V|a:A|s:W|u:U|a:|t:R|s:X|a:A", "u:U", "s:S"}) {
    EXPECT_EQ(Placed({}, text), text);
  }
}

TEST(SystemMessages, OthersBecomePartOfTheUsersTurn) {
  const std::pair<const char*, const char*> cases[] = {
      {"s:S|u:U", "s:S|u:U"},
      {"s:S|s:T|u:U", "s:S\n\nT|u:U"},
      {"u:U|s:S", "u:U\n\nS"},
      {"u:U|s:S|s:T|a:A", "u:U\n\nS\n\nT|a:A"},
      {"u:U|s:S|u:V|a:A", "u:U\n\nS\n\nV|a:A"},
      {"u:U|u:V", "u:U|u:V"},
      {"u:U|a:A|s:S|u:V", "u:U|a:A|u:S\n\nV"},
      {"u:U|a:A|s:S", "u:U|a:A|u:S"},
      {"u:U|a:A|s:S|a:B", "u:U|a:A|u:S|a:B"},
      {"u:U|a:|t:R|s:S", "u:U|a:|t:R|u:S"},
      {"u:U|a:|t:R|s:S|u:V", "u:U|a:|t:R|u:S\n\nV"},
      {"u:U|a:|s:S|t:R|a:A", "u:U|a:|t:S\n\nR|a:A"},
      {"u:|s:S", "u:S"},
      {"u:U|s:", "u:U"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(Placed(kOnlyFirst, text), expected) << text;
}

TEST(SystemMessages, NoneIsLostWhereTheTemplateTakesNone) {
  const std::pair<const char*, const char*> cases[] = {
      {"s:S|u:U", "u:S\n\nU"},        {"s:S|s:T|u:U", "u:S\n\nT\n\nU"},      {"s:S", "u:S"},
      {"s:S|a:A|u:U", "u:S|a:A|u:U"}, {"u:U|a:|t:R|s:S", "u:U|a:|t:R\n\nS"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(Placed(kNowhere, text), expected) << text;
}

TEST(SystemMessages, WhatIsNoTextStays) {
  Json messages = Long("u:U|s:S");
  messages[1]["content"] = Json::array({{{"type", "text"}, {"text", "S"}}});
  const Json before = messages;
  PlaceSystemMessages(kNowhere, messages);
  EXPECT_EQ(messages, before);
  messages = Json::array({nullptr, {{"content", "no role"}}, Long("s:S")[0]});
  PlaceSystemMessages(kNowhere, messages);
  EXPECT_EQ(messages.size(), 3);
}

TEST(SystemMessages, ATemplateSaysWhereItWritesThem) {
  const std::string turns =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt "
      "%}<assistant>{% endif %}";
  const auto places = [](const std::string& source) {
    const auto parsed = ChatTemplate::Parse(source);
    EXPECT_TRUE(parsed.ok());
    return FindSystemPlaces(*parsed);
  };
  const SystemPlaces all = places(turns);
  EXPECT_TRUE(all.first && all.more_first && all.after_user && all.after_answer &&
              all.after_result && all.user_after_result);
  // All system messages at the top change the beginning.
  const SystemPlaces top = places(
      "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
      "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  EXPECT_TRUE(top.first && top.more_first);
  EXPECT_FALSE(top.after_user || top.after_answer || top.after_result);
  // One that changes what the template writes at the top is as bad.
  const SystemPlaces absent = places(
      "{% if not messages | selectattr('role', 'equalto', 'system') | list %}I help.{% endif %}" +
      turns);
  EXPECT_TRUE(absent.first && absent.more_first);
  EXPECT_FALSE(absent.after_user || absent.after_answer || absent.after_result);
  const SystemPlaces raises = places(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}" +
      turns + "{% endfor %}");
  EXPECT_FALSE(raises.first || raises.more_first || raises.after_user);
  const SystemPlaces silent = places(
      "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  EXPECT_FALSE(silent.first || silent.after_answer);
  // Nothing is known of a template that writes no conversation.
  EXPECT_TRUE(places("{{ raise_exception('never') }}").first);
  // Nor of one that never ends: the probes take seconds, not minutes.
  const std::string loop = "{% for i in range(99999) %}";
  EXPECT_TRUE(places(loop + loop + loop + "{% endfor %}{% endfor %}{% endfor %}").first);
}

}  // namespace
}  // namespace kvcache::system_messages_test
