#include "server/request/tool_changes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcache::server::tool_changes_test {
namespace {

Json Parsed(const char* text) {
  return Json::parse(text);
}

const KnownTools& Known() {
  static const KnownTools known = {
      {"fetch",
       Parsed(R"({"name": "fetch", "description": "Gets", "parameters": {"type": "object"}})")},
      {"list",
       Parsed(R"({"name": "list", "description": "Lists", "parameters": {"type": "object"}})")}};
  return known;
}

TEST(ToolChanges, DivideToolsIntoThoseOfTheTemplateAndThoseInUse) {
  const Json body = Parsed(R"({
    "tools": [{"name": "list"}, {"name": "search"}, {"name": "fetch", "defer_loading": true},
              {"name": "idle", "defer_loading": true}],
    "messages": [
      {"role": "user", "content": "text"},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
        {"type": "tool_reference", "tool_name": "fetch"}, {"type": "text", "text": "and"}]}]},
      {"role": "system", "content": [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "list"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "new"}}},
        {"type": "tool_addition", "tool": {"type": "mcp_tool_reference", "name": "skipped"}}]},
      {"role": "user"}, 7]})");
  Fields fields(body);
  const OfferedTools offered =
      ReadOfferedTools(body, fields, std::make_shared<const Dialect>(*FindDialect("hermes")));
  ASSERT_TRUE(fields.ok()) << fields.error().message();
  EXPECT_EQ(offered.callable, (std::vector<std::string>{"search", "fetch", "new"}));
  ASSERT_EQ(offered.tools.list.size(), 2);
  EXPECT_EQ(offered.tools.list[0]["function"]["name"], "list");
  EXPECT_EQ(offered.tools.list[1]["function"]["name"], "search");
  EXPECT_EQ(offered.known.size(), 5);
}

TEST(ToolChanges, DefinitionsThatFollowOneAnotherAreOneList) {
  ToolChangeText text(Known(), "it");
  std::string written;
  for (const char* block :
       {R"({"type": "tool_reference", "tool_name": "fetch"})",
        R"({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "list"}})",
        R"({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "fetch"}})"}) {
    const auto one = text.Write(Parsed(block));
    ASSERT_TRUE(one.ok()) << one.status().message();
    written += *one;
  }
  EXPECT_EQ(
      written + text.Close(),
      "\n<functions>\n"
      R"(<function>{"description":"Gets","name":"fetch","parameters":{"type":"object"}}</function>)"
      "\n"
      R"(<function>{"description":"Lists","name":"list","parameters":{"type":"object"}}</function>)"
      "\n</functions>\n"
      "\nThe tool 'fetch' is no longer available.\n");
}

TEST(ToolChanges, ErrorsNameTheBlockAndTheTool) {
  const struct {
    const char* block;
    const char* words;
  } cases[] = {
      {R"({"type": "tool_reference"})", "'tool_reference' that names no tool"},
      {R"({"type": "tool_reference", "tool_name": 1})", "names no tool"},
      {R"({"type": "tool_reference", "tool_name": "gone"})", "names the tool 'gone', which is not"},
      {R"({"type": "tool_addition"})", "without a 'tool' of type"},
      {R"({"type": "tool_addition", "tool": {"type": "mcp_tool_reference", "name": "fetch"}})",
       "without a 'tool' of type"},
      {R"({"type": "tool_addition", "tool": {"type": "tool_definition"}})", "names no tool"},
      {R"({"type": "tool_removal", "tool": {"type": "tool_definition", "definition": {"name": "fetch"}}})",
       "has a definition"},
  };
  for (const auto& [block, words] : cases) {
    const auto written = ToolChangeText(Known(), "the 'content'").Write(Parsed(block));
    ASSERT_FALSE(written.ok()) << block;
    EXPECT_TRUE(written.status().message().starts_with("the 'content' ")) << block;
    EXPECT_NE(written.status().message().find(words), std::string::npos)
        << written.status().message();
  }
}

}  // namespace
}  // namespace kvcache::server::tool_changes_test
