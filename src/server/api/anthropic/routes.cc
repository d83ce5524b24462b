// Anthropic's messages and the count of their tokens.
#include "server/api/routes.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/call_history.h"
#include "json/closable_json.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/asked_form.h"
#include "server/request/model_defaults.h"
#include "server/request/pictures.h"
#include "server/request/request_sampling.h"
#include "server/request/tool_changes.h"
#include "server/request/tools.h"

namespace kvcache::server::anthropic {
namespace {

Json TextBlock(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

class Shape final : public AnswerShape {
 public:
  // `marked`: the tokens up to the last cache_control.
  Shape(std::string model, Position marked) : model_(std::move(model)), marked_(marked) {}

  std::string Start(const ReuseReport& reuse) override {
    return TypedEvent({{"type", "message_start"}, {"message", Message(Json::array(), reuse)}});
  }

  std::string Delta(const AnswerPart& part) override {
    using Kind = AnswerPart::Kind;
    switch (part.kind) {
      case Kind::kCallBegin: return BeginCall(part.call);
      case Kind::kCallArguments: return InputDelta(input_.Take(part.text));
      case Kind::kCallEnd: return EndCall();
      case Kind::kText:
      case Kind::kReasoning: break;
    }
    std::string out;
    if (part.kind != kind_) out = CloseBlock();
    kind_ = part.kind;
    const bool text = kind_ == Kind::kText;
    if (!open_) out += OpenBlock(text ? TextBlock("") : ThinkingBlock("", ""));
    return out + BlockDelta(text ? Json{{"type", "text_delta"}, {"text", part.text}}
                                 : Json{{"type", "thinking_delta"}, {"thinking", part.text}});
  }

  std::string End(const TextResult& result) override {
    std::string out = CloseBlock();
    Json usage = Usage(result.reuse);
    usage["output_tokens"] = result.generated;
    out += TypedEvent({{"type", "message_delta"}, {"delta", Ending(result)}, {"usage", usage}});
    return out + TypedEvent({{"type", "message_stop"}});
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    Json content = Json::array();
    if (!answer.reasoning.empty()) content.push_back(ThinkingBlock(answer.reasoning, kSignature));
    if (!answer.text.empty()) content.push_back(TextBlock(answer.text));
    for (const auto& [call, written] : answer.calls) {
      content.push_back(CallJson(call, call.arguments));
    }
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
            {"id", CallId(call, "toolu_")},
            {"name", call.name},
            {"input", std::move(input)}};
  }

  std::string OpenBlock(Json block) {
    open_ = true;
    std::string out = TypedEvent(
        {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
    return index_ == 0 ? out + TypedEvent({{"type", "ping"}}) : out;
  }
  std::string BlockDelta(Json delta) const {
    return TypedEvent(
        {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }
  std::string CloseBlock() {
    if (!std::exchange(open_, false)) return {};
    std::string out;
    if (kind_ == AnswerPart::Kind::kReasoning) {
      out = BlockDelta({{"type", "signature_delta"}, {"signature", kSignature}});
    }
    return out + TypedEvent({{"type", "content_block_stop"}, {"index", index_++}});
  }
  std::string BeginCall(const ToolCall& call) {
    ++calls_;
    std::string out = CloseBlock();
    kind_ = AnswerPart::Kind::kCallBegin;
    return out + OpenBlock(CallJson(call, Json::object()));
  }
  std::string EndCall() {
    std::string out = InputDelta(input_.Close());
    return out += CloseBlock();
  }
  std::string InputDelta(const std::string& json) const {
    if (json.empty()) return {};
    return BlockDelta({{"type", "input_json_delta"}, {"partial_json", json}});
  }

  Json Ending(const TextResult& result) const {
    const char* reason = "end_turn";
    if (calls_ > 0) reason = "tool_use";
    if (result.stop == StopReason::kLength) reason = "max_tokens";
    if (!result.stop_string.empty()) reason = "stop_sequence";
    const Json stop = result.stop_string.empty() ? Json() : Json(result.stop_string);
    return {{"stop_reason", reason}, {"stop_sequence", stop}};
  }

  Json Usage(const ReuseReport& reuse) const {
    const Position created = std::max<Position>(0, marked_ - reuse.restored);
    return {{"input_tokens", reuse.prompt - reuse.restored - created},
            {"cache_creation_input_tokens", created},
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
  Position marked_;
  std::string id_ = NewId("msg_");
  int index_ = 0;      // of the content block
  bool open_ = false;  // whether it has begun
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;
  std::size_t calls_ = 0;
  ClosableJson input_;  // of the call that is written
};

// Returns the blocks of a content: a string is one text block.
Result<Json> Blocks(const Json& content, const std::string& name) {
  if (content.is_string()) return Json::array({TextBlock(content.get<std::string>())});
  if (!content.is_array())
    return InvalidArgument(StrCat(name, " must be a string or an array of blocks"));
  for (const Json& block : content) {
    if (!block.is_object() || !block.contains("type") || !block["type"].is_string()) {
      return InvalidArgument(StrCat(name, " has a block without a 'type'"));
    }
  }
  return content;
}

Result<std::string> TextIn(const Json& block, const char* key, const std::string& name) {
  if (block.contains(key) && block[key].is_string()) return block[key].get<std::string>();
  return InvalidArgument(StrCat(name, " has a block of type ",
                                Quoted(block["type"].get<std::string>()), " without a '", key,
                                "' that is a string"));
}

// Returns the end of an error about a block that is no text.
std::string PictureHint(const Json& block) {
  const bool is_picture = !PictureKind(block["type"].get_ref<const std::string&>()).empty();
  return is_picture ? "; " + IgnoreImagesHint() : "";
}

// Returns the joined texts of a content that has nothing else but references to tools.
Result<std::string> BlocksText(const Json& content, const KnownTools& tools,
                               const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const Json blocks, Blocks(content, name));
  ToolChangeText changes(tools, name);
  std::string text;
  for (const Json& block : blocks) {
    if (block["type"] == "tool_reference") {
      KVCACHE_ASSIGN_OR_RETURN(const std::string definition, changes.Write(block));
      text += definition;
      continue;
    }
    text += changes.Close();
    if (block["type"] != "text") {
      return InvalidArgument(StrCat(name, " has a block of type ",
                                    Quoted(block["type"].get<std::string>()),
                                    "; only text is supported there", PictureHint(block)));
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string piece, TextIn(block, "text", name));
    text += piece;
  }
  return text + changes.Close();
}

// A cache_control: what is kept ends behind the message with this index; -1: before the first one.
struct CacheMark {
  std::ptrdiff_t message = -1;
  double seconds = 0.0;
};

// Reads the cache_control of a block or tool, if it has one.
Status ReadMark(const Json& block, const std::string& name, std::ptrdiff_t message,
                std::vector<CacheMark>& marks) {
  const Json control = block.value("cache_control", Json());
  if (control.is_null()) return Status::Ok();
  const auto wrong = [&](const char* rule) {
    return InvalidArgument(StrCat("the 'cache_control' of ", name, " ", rule));
  };
  if (!control.is_object() || control.value("type", Json()) != "ephemeral") {
    return wrong("must be an object with the 'type' \"ephemeral\"");
  }
  const Json ttl = control.value("ttl", Json("5m"));
  if (ttl != "5m" && ttl != "1h") return wrong("has a 'ttl' other than \"5m\" and \"1h\"");
  marks.push_back({message, ttl == "5m" ? 300.0 : 3600.0});
  if (marks.size() > 4) return InvalidArgument("there are more than 4 blocks with 'cache_control'");
  return Status::Ok();
}

// Turns messages of Anthropic's form into those that templates read.
class Conversation {
 public:
  // `tools` must outlive this.
  explicit Conversation(const KnownTools& tools) : tools_(tools) {}

  Status Add(const Json& message, const std::string& name) {
    if (!message.is_object()) return InvalidArgument(StrCat(name, " must be an object"));
    const Json role = message.value("role", Json());
    if (role != "user" && role != "assistant" && role != "system") {
      return InvalidArgument(
          StrCat("the 'role' of ", name, " must be \"user\", \"assistant\" or \"system\""));
    }
    if (!message.contains("content")) return InvalidArgument(StrCat(name, " has no 'content'"));
    const std::string content = StrCat("the 'content' of ", name);
    KVCACHE_ASSIGN_OR_RETURN(const Json blocks, Blocks(message["content"], content));
    Json turn = {{"role", role}, {"content", ""}};
    const std::size_t marks = marks_.size();
    KVCACHE_ASSIGN_OR_RETURN(const bool results, AddBlocks(blocks, content, turn));
    // Results of tools are messages of their own; often there is nothing else. A system message says something.
    const bool may_be_empty = !results && role != "system";
    if (may_be_empty || !turn["content"].get_ref<const std::string&>().empty())
      messages_.push_back(std::move(turn));
    for (std::size_t i = marks; i < marks_.size(); ++i) marks_[i].message = Last();
    return Status::Ok();
  }

  Status AddSystem(const Json& system) {
    KVCACHE_ASSIGN_OR_RETURN(const Json blocks, Blocks(system, "'system'"));
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, BlocksText(system, tools_, "'system'"));
    if (!text.empty()) messages_.push_back({{"role", "system"}, {"content", text}});
    for (const Json& block : blocks) {
      KVCACHE_RETURN_IF_ERROR(ReadMark(block, "'system'", Last(), marks_));
    }
    return Status::Ok();
  }

  // A mark of the whole request is one of its last block.
  Status MarkEnd(const Json& body) { return ReadMark(body, "the request", Last(), marks_); }
  Status MarkTool(const Json& tool) { return ReadMark(tool, "a tool", -1, marks_); }

  Json Take() { return std::move(messages_); }
  std::vector<CacheMark> TakeMarks() { return std::move(marks_); }

 private:
  // Adds the blocks of a message to its turn. Returns whether there are results of tools among them.
  Result<bool> AddBlocks(const Json& blocks, const std::string& name, Json& turn) {
    ToolChangeText changes(tools_, name);
    const auto append = [&](const std::string& text) {
      turn["content"].get_ref<std::string&>() += text;
    };
    bool results = false;
    for (const Json& block : blocks) {
      KVCACHE_RETURN_IF_ERROR(ReadMark(block, name, 0, marks_));
      if (turn["role"] == "system" && IsToolChange(block["type"])) {
        KVCACHE_ASSIGN_OR_RETURN(const std::string text, changes.Write(block));
        append(text);
        continue;
      }
      append(changes.Close());
      if (turn["role"] == "user" && block["type"] == "tool_result") {
        results = true;
        KVCACHE_RETURN_IF_ERROR(AddResult(block, name));
      } else {
        KVCACHE_RETURN_IF_ERROR(AddBlock(block, name, turn));
      }
    }
    append(changes.Close());
    return results;
  }

  Status AddResult(const Json& block, const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextIn(block, "tool_use_id", name));
    std::string text;
    if (const Json content = block.value("content", Json()); !content.is_null()) {
      KVCACHE_ASSIGN_OR_RETURN(text,
                               BlocksText(content, tools_, StrCat("a tool_result in ", name)));
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
      return InvalidArgument(StrCat(name, " has a block of type ", Quoted(type),
                                    "; it is not supported", PictureHint(block)));
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string id, TextIn(block, "id", name));
    KVCACHE_ASSIGN_OR_RETURN(const std::string tool, TextIn(block, "name", name));
    const Json input = CallArguments(block.value("input", Json()));
    if (!input.is_object())
      return InvalidArgument(StrCat(name, " has an 'input' that is no object"));
    turn["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", tool}, {"arguments", input}}}});
    return Status::Ok();
  }

  std::ptrdiff_t Last() const { return std::ssize(messages_) - 1; }

  const KnownTools& tools_;
  Json messages_ = Json::array();
  std::vector<CacheMark> marks_;
};

Result<ChatInput> ReadConversation(const Json& body, const Fields& fields, const KnownTools& tools,
                                   std::vector<CacheMark>& marks) {
  Conversation conversation(tools);
  if (const Json* const given = fields.Find("tools"); given != nullptr) {
    for (const Json& tool : *given) KVCACHE_RETURN_IF_ERROR(conversation.MarkTool(tool));
  }
  if (const Json* const system = fields.Find("system"); system != nullptr) {
    KVCACHE_RETURN_IF_ERROR(conversation.AddSystem(*system));
  }
  const Json* const messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return InvalidArgument("'messages' must be an array with at least one message");
  }
  for (std::size_t i = 0; i < messages->size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(conversation.Add((*messages)[i], StrCat("'messages[", i, "]'")));
  }
  KVCACHE_RETURN_IF_ERROR(conversation.MarkEnd(body));
  ChatInput input;
  input.messages = conversation.Take();
  marks = conversation.TakeMarks();
  return input;
}

// Returns the tokens of `prompt` that end with a message: another text after it changes only what follows.
Result<Position> EndOfMessage(const RouteContext& context, ChatInput input, const Prompt& prompt,
                              std::ptrdiff_t message) {
  // The last token is never reused.
  const auto max = static_cast<Position>(prompt.tokens.size()) - 1;
  const auto next = static_cast<std::size_t>(message + 1);
  if (next >= input.messages.size()) return max;
  Json& content = input.messages[next]["content"];
  const std::string text = content.is_string() ? content.get<std::string>() : std::string();
  content = (text.starts_with('a') ? "b" : "a") + text;
  KVCACHE_ASSIGN_OR_RETURN(const Prompt other, RenderChat(context, std::move(input)));
  const auto differ = std::mismatch(prompt.tokens.begin(), prompt.tokens.end(),
                                    other.tokens.begin(), other.tokens.end());
  return std::min(max, static_cast<Position>(differ.first - prompt.tokens.begin()));
}

// Returns a pin for each time to live: the longest marked prefix.
Result<std::vector<PromptPin>> ReadPins(const RouteContext& context, const ChatInput& input,
                                        const Prompt& prompt, const std::vector<CacheMark>& marks) {
  std::vector<PromptPin> pins;
  for (const double seconds : {300.0, 3600.0}) {
    std::ptrdiff_t last = -2;
    for (const CacheMark& mark : marks) {
      if (mark.seconds == seconds) last = std::max(last, mark.message);
    }
    if (last < -1) continue;
    KVCACHE_ASSIGN_OR_RETURN(const Position length, EndOfMessage(context, input, prompt, last));
    if (length > 0) pins.push_back({length, seconds});
  }
  return pins;
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

// What is pinned shall be a place to go on from.
void AddRestorePoints(TextRequest& request) {
  std::vector<Position>& points = request.prompt.restore_points;
  for (const PromptPin& pin : request.pins) points.push_back(pin.length);
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
}

// Reads the prompt and what shall be kept of it. Errors are answered.
Result<TextRequest> ReadPrompt(const RouteContext& context, const Json& body, Fields& fields) {
  const OfferedTools offered = ReadOfferedTools(body, fields, context.service.dialect());
  const Tools& tools = offered.tools;
  ChatInput extra;
  ReadThinking(fields, extra);
  for (const char* name : {"mcp_servers", "container"}) fields.Refuse(name);
  const AnswerForm form = ReadAskedForm(fields);
  const auto read = [&]() -> Result<TextRequest> {
    KVCACHE_RETURN_IF_ERROR(fields.error());
    std::vector<CacheMark> marks;
    KVCACHE_ASSIGN_OR_RETURN(ChatInput input, ReadConversation(body, fields, offered.known, marks));
    input.tools = tools.list;
    input.variables = std::move(extra.variables);
    TextRequest request;
    KVCACHE_ASSIGN_OR_RETURN(request.prompt, RenderChat(context, input));
    SetCalls(tools, request.prompt.answer);
    KVCACHE_ASSIGN_OR_RETURN(request.form, FormOf(tools, form));
    KVCACHE_ASSIGN_OR_RETURN(request.pins, ReadPins(context, input, request.prompt, marks));
    AddRestorePoints(request);
    return request;
  };
  auto request = read();
  if (!request.ok()) context.Refuse(request.status());
  return request;
}

void Messages(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  if (!fields.Has("max_tokens")) fields.Fail("max_tokens", "is missing");
  const auto max = static_cast<std::int32_t>(fields.Integer("max_tokens", 1, 1, INT32_MAX));
  if (const Json* const stop = fields.Find("stop_sequences");
      stop != nullptr && !stop->is_array()) {
    fields.Fail("stop_sequences", "must be an array of strings");
  }
  std::vector<std::string> stop = fields.Texts("stop_sequences", 64);
  if (stop.empty()) stop = StoredStops(context.model);
  // A description of a model may say more than a request of this API.
  const SamplingParams sampling = ReadSampling(fields, body.contains("temperature") ? 1.0 : 2.0);
  const bool stream = fields.Bool("stream", false);
  auto request = ReadPrompt(context, body, fields);
  if (!request.ok()) return;
  request->max_tokens = max;
  request->stop = std::move(stop);
  request->sampling = sampling;
  Position marked = 0;
  for (const PromptPin& pin : request->pins) marked = std::max(marked, pin.length);
  Deliver(context, std::move(*request), stream,
          std::make_shared<Shape>(context.model.name, marked));
}

void CountTokens(const RouteContext& context, const Json& body) {
  Fields fields(body);
  const auto request = ReadPrompt(context, body, fields);
  if (request.ok()) context.Send({{"input_tokens", request->prompt.tokens.size()}});
}

}  // namespace

std::vector<Route> Routes() {
  return {
      {"POST", "/v1/messages", WithModel{Messages}},
      {"POST", "/v1/messages/count_tokens", WithModel{CountTokens}},
  };
}

}  // namespace kvcache::server::anthropic
