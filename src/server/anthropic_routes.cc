// Anthropic's messages and the count of their tokens.
#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "server/answer.h"
#include "server/request_sampling.h"
#include "server/tools.h"

namespace kvcache::server {
namespace {

Status Wrong(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

std::string Event(const Json& data) {
  return StrCat("event: ", data["type"].get_ref<const std::string&>(), "\ndata: ", Dump(data),
                "\n\n");
}

Json TextBlock(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

class AnthropicShape final : public AnswerShape {
 public:
  explicit AnthropicShape(std::string model) : model_(std::move(model)) {}

  std::string_view stream_type() const override { return "text/event-stream; charset=utf-8"; }

  std::string Start(const ReuseReport& reuse) override {
    return Event({{"type", "message_start"}, {"message", Message(Json::array(), reuse)}});
  }

  std::string Delta(const AnswerPart& part) override {
    std::string out;
    if (!open_ || part.kind != kind_) out = CloseBlock();
    kind_ = part.kind;
    if (kind_ == AnswerPart::Kind::kCall) return out + CallBlock(part.call);
    const bool text = kind_ == AnswerPart::Kind::kText;
    if (!open_) out += OpenBlock(text ? TextBlock("") : ThinkingBlock("", ""));
    return out + BlockDelta(text ? Json{{"type", "text_delta"}, {"text", part.text}}
                                 : Json{{"type", "thinking_delta"}, {"thinking", part.text}});
  }

  std::string End(const TextResult& result) override {
    std::string out = CloseBlock();
    Json usage = Usage(result.reuse);
    usage["output_tokens"] = result.generated;
    out += Event({{"type", "message_delta"}, {"delta", Ending(result)}, {"usage", usage}});
    return out + Event({{"type", "message_stop"}});
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    Json content = Json::array();
    if (!answer.reasoning.empty()) content.push_back(ThinkingBlock(answer.reasoning, kSignature));
    if (!answer.text.empty()) content.push_back(TextBlock(answer.text));
    for (const ToolCall& call : answer.calls) content.push_back(CallJson(call, call.arguments));
    calls_ = answer.calls.size();
    Json message = Message(std::move(content), result.reuse);
    message.update(Ending(result));
    message["usage"]["output_tokens"] = result.generated;
    return message;
  }

 private:
  // Thoughts that come back are not checked.
  static constexpr const char* kSignature = "unsigned";

  static Json ThinkingBlock(const std::string& thoughts, const std::string& signature) {
    return {{"type", "thinking"}, {"thinking", thoughts}, {"signature", signature}};
  }
  static Json CallJson(const ToolCall& call, Json input) {
    return {{"type", "tool_use"},
            {"id", NewId("toolu_")},
            {"name", call.name},
            {"input", std::move(input)}};
  }

  std::string OpenBlock(Json block) {
    open_ = true;
    std::string out = Event(
        {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
    return index_ == 0 ? out + Event({{"type", "ping"}}) : out;
  }
  std::string BlockDelta(Json delta) const {
    return Event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }
  std::string CloseBlock() {
    if (!std::exchange(open_, false)) return {};
    std::string out;
    if (kind_ == AnswerPart::Kind::kReasoning) {
      out = BlockDelta({{"type", "signature_delta"}, {"signature", kSignature}});
    }
    return out + Event({{"type", "content_block_stop"}, {"index", index_++}});
  }
  std::string CallBlock(const ToolCall& call) {
    ++calls_;
    std::string out = OpenBlock(CallJson(call, Json::object()));
    out += BlockDelta({{"type", "input_json_delta"}, {"partial_json", Dump(call.arguments)}});
    return out + CloseBlock();
  }

  Json Ending(const TextResult& result) const {
    const char* reason = "end_turn";
    if (calls_ > 0) reason = "tool_use";
    if (result.stop == StopReason::kLength) reason = "max_tokens";
    if (!result.stop_string.empty()) reason = "stop_sequence";
    const Json stop = result.stop_string.empty() ? Json() : Json(result.stop_string);
    return {{"stop_reason", reason}, {"stop_sequence", stop}};
  }

  static Json Usage(const ReuseReport& reuse) {
    return {{"input_tokens", reuse.prompt - reuse.restored},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", reuse.restored},
            {"output_tokens", 0}};
  }

  Json Message(Json content, const ReuseReport& reuse) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", std::move(content)},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", Usage(reuse)}};
  }

  std::string model_;
  std::string id_ = NewId("msg_");
  int index_ = 0;      // of the content block
  bool open_ = false;  // whether it has begun
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;
  std::size_t calls_ = 0;
};

// Returns the blocks of a content: a string is one text block.
Result<Json> Blocks(const Json& content, const std::string& name) {
  if (content.is_string()) return Json::array({TextBlock(content.get<std::string>())});
  if (!content.is_array()) return Wrong(StrCat(name, " must be a string or an array of blocks"));
  for (const Json& block : content) {
    if (!block.is_object() || !block.contains("type") || !block["type"].is_string()) {
      return Wrong(StrCat(name, " has a block without a 'type'"));
    }
  }
  return content;
}

Result<std::string> TextIn(const Json& block, const char* key, const std::string& name) {
  if (block.contains(key) && block[key].is_string()) return block[key].get<std::string>();
  return Wrong(StrCat(name, " has a block of type ", Quoted(block["type"].get<std::string>()),
                      " without a '", key, "' that is a string"));
}

// Returns the joined texts of a content that has nothing else.
Result<std::string> BlocksText(const Json& content, const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const Json blocks, Blocks(content, name));
  std::string text;
  for (const Json& block : blocks) {
    if (block["type"] != "text") {
      return Wrong(StrCat(name, " has a block of type ", Quoted(block["type"].get<std::string>()),
                          "; only text is supported there"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string piece, TextIn(block, "text", name));
    text += piece;
  }
  return text;
}

// Turns messages of Anthropic's form into those that templates read.
class Conversation {
 public:
  Status Add(const Json& message, const std::string& name) {
    if (!message.is_object()) return Wrong(StrCat(name, " must be an object"));
    const Json role = message.value("role", Json());
    if (role != "user" && role != "assistant") {
      return Wrong(StrCat("the 'role' of ", name, " must be \"user\" or \"assistant\""));
    }
    if (!message.contains("content")) return Wrong(StrCat(name, " has no 'content'"));
    const std::string content = StrCat("the 'content' of ", name);
    KVCACHE_ASSIGN_OR_RETURN(const Json blocks, Blocks(message["content"], content));
    Json turn = {{"role", role}, {"content", ""}};
    bool results = false;
    for (const Json& block : blocks) {
      if (role == "user" && block["type"] == "tool_result") {
        results = true;
        KVCACHE_RETURN_IF_ERROR(AddResult(block, content));
      } else {
        KVCACHE_RETURN_IF_ERROR(AddBlock(block, content, turn));
      }
    }
    // Results of tools are messages of their own; often there is nothing else.
    if (!results || turn["content"] != "") messages_.push_back(std::move(turn));
    return Status::Ok();
  }

  void AddSystem(const std::string& text) {
    if (!text.empty()) messages_.push_back({{"role", "system"}, {"content", text}});
  }
  Json Take() { return std::move(messages_); }

 private:
  Status AddResult(const Json& block, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextIn(block, "tool_use_id", name));
    std::string text;
    if (const Json content = block.value("content", Json()); !content.is_null()) {
      KVCACHE_ASSIGN_OR_RETURN(text, BlocksText(content, StrCat("a tool_result in ", name)));
    }
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
    return Status::Ok();
  }

  static Status AddBlock(const Json& block, const std::string& name, Json& turn) {
    const auto& type = block["type"].get_ref<const std::string&>();
    const bool assistant = turn["role"] == "assistant";
    const auto append = [&](const char* key, const char* to) {
      const auto text = TextIn(block, key, name);
      if (text.ok()) turn[to] = turn.value(to, "") + *text;
      return text.status();
    };
    if (type == "text") return append("text", "content");
    if (assistant && type == "thinking") return append("thinking", "reasoning_content");
    if (assistant && type == "redacted_thinking") return Status::Ok();
    if (!assistant || type != "tool_use") {
      return Wrong(StrCat(name, " has a block of type ", Quoted(type), "; it is not supported"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextIn(block, "id", name));
    KVCACHE_ASSIGN_OR_RETURN(const std::string tool, TextIn(block, "name", name));
    const Json input = block.value("input", Json::object());
    if (!input.is_object()) return Wrong(StrCat(name, " has an 'input' that is no object"));
    turn["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", tool}, {"arguments", input}}}});
    return Status::Ok();
  }

  Json messages_ = Json::array();
};

Result<ChatInput> ReadConversation(const Fields& fields) {
  Conversation conversation;
  if (const Json* const system = fields.Find("system"); system != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, BlocksText(*system, "'system'"));
    conversation.AddSystem(text);
  }
  const Json* const messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return Wrong("'messages' must be an array with at least one message");
  }
  for (std::size_t i = 0; i < messages->size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(conversation.Add((*messages)[i], StrCat("'messages[", i, "]'")));
  }
  ChatInput input;
  input.messages = conversation.Take();
  return input;
}

// Reads whether the model shall think, for its template.
void ReadThinking(Fields& fields, ChatInput& input) {
  const Json* const thinking = fields.Find("thinking");
  if (thinking == nullptr) return;
  Fields inner(*thinking, "thinking.");
  const std::string type = inner.Text("type");
  (void)inner.Integer("budget_tokens", 0, 0, INT32_MAX);
  if (!inner.ok()) {
    fields.Fail("thinking", "must be an object with a 'type'");
  } else if (type != "enabled" && type != "disabled" && type != "adaptive") {
    fields.Fail("thinking", "has an unknown 'type'");
  } else if (type != "adaptive") {
    input.variables["enable_thinking"] = type == "enabled";
  }
}

void RefuseUnsupported(Fields& fields) {
  for (const char* name : {"mcp_servers", "container", "output_format"}) fields.Refuse(name);
  const Json* const output = fields.Find("output_config");
  if (output == nullptr) return;
  Fields inner(*output, "output_config.");
  inner.Refuse("format");
  if (!inner.ok()) fields.Fail("output_config", "must be an object; 'format' is not supported");
}

// Returns the prompt, or has answered with an error.
Result<Prompt> ReadPrompt(const RouteContext& context, Fields& fields, HttpReply& reply) {
  const std::string model = fields.Text("model");
  const Tools tools = ReadAnthropicTools(fields, context.service.calls());
  ChatInput extra;
  ReadThinking(fields, extra);
  RefuseUnsupported(fields);
  if (!fields.ok()) {
    SendError(reply, Api::kAnthropic, FromFields(fields));
    return fields.error();
  }
  if (!CheckModel(context, Api::kAnthropic, model, reply)) return Wrong("another model");
  auto input = ReadConversation(fields);
  if (input.ok()) {
    input->tools = tools.list;
    input->variables = std::move(extra.variables);
  }
  auto prompt = input.ok() ? context.service.Render(std::move(*input)) : input.status();
  if (!prompt.ok()) {
    SendError(reply, Api::kAnthropic, FromStatus(prompt.status()));
  } else {
    prompt->answer.one_call = tools.one_call;
  }
  return prompt;
}

}  // namespace

void AnthropicMessages(const RouteContext& context, const Json& body,
                       std::shared_ptr<HttpReply> reply) {
  Fields fields(body);
  TextRequest request;
  if (!fields.Has("max_tokens")) fields.Fail("max_tokens", "is missing");
  request.max_tokens = static_cast<std::int32_t>(fields.Integer("max_tokens", 1, 1, INT32_MAX));
  if (const Json* const stop = fields.Find("stop_sequences");
      stop != nullptr && !stop->is_array()) {
    fields.Fail("stop_sequences", "must be an array of strings");
  }
  request.stop = fields.Texts("stop_sequences", 64);
  request.sampling = ReadSampling(fields, -2.0, 1.0);
  const bool stream = fields.Bool("stream", false);
  auto prompt = ReadPrompt(context, fields, *reply);
  if (!prompt.ok()) return;
  request.prompt = std::move(*prompt);
  Deliver(context.service, std::move(request), stream, Api::kAnthropic,
          std::make_shared<AnthropicShape>(context.model.name), std::move(reply));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature of all routes with a body
void AnthropicCountTokens(const RouteContext& context, const Json& body,
                          std::shared_ptr<HttpReply> reply) {
  Fields fields(body);
  const auto prompt = ReadPrompt(context, fields, *reply);
  if (prompt.ok()) SendJson(*reply, {{"input_tokens", prompt->tokens.size()}});
}

}  // namespace kvcache::server
