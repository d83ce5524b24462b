#include "server/api/responses/shape.h"

#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "server/api/responses/conversation.h"
#include "server/api/responses/input.h"
#include "server/output/stamps.h"

namespace kvcache::server::responses {
namespace {

class Shape final : public AnswerShape {
 public:
  explicit Shape(AnswerSetup setup) : setup_(std::move(setup)) {}

  const char* prompt_field() const override { return "input"; }

  std::string Start(const ReuseReport& /*reuse*/) override {
    const std::string created = NumberedEvent("response.created", {{"response", setup_.response}});
    return created + NumberedEvent("response.in_progress", {{"response", setup_.response}});
  }

  std::string Delta(const AnswerPart& part) override {
    using Kind = AnswerPart::Kind;
    std::string out;
    switch (part.kind) {
      case Kind::kCallBegin:
        out = CloseItem("completed");
        return out + OpenCall(NewCall(part.call));
      case Kind::kCallArguments: return CallDelta(part.text);
      // A call that the model did not complete has arguments that are no JSON.
      case Kind::kCallEnd: return CloseCall(Json::accept(text_) ? "completed" : "incomplete");
      case Kind::kText:
      case Kind::kReasoning: break;
    }
    if (part.kind != kind_) out = CloseItem("completed");
    if (!open_) out += OpenItem(NewItem(part.kind), part.kind);
    return out + TextDelta(part.text);
  }

  std::string End(const TextResult& result) override {
    // An answer without a word is an empty message.
    std::string out = output_.empty() && !open_ ? OpenMessage() : "";
    const bool complete = result.stop != StopReason::kLength;
    out += CloseItem(complete ? "completed" : "incomplete");
    const Json response = Finished(result);
    return out + NumberedEvent(complete ? "response.completed" : "response.incomplete",
                               {{"response", response}});
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    if (!answer.reasoning.empty()) {
      (void)Delta({.kind = AnswerPart::Kind::kReasoning, .text = answer.reasoning});
    }
    if (!answer.text.empty()) {
      (void)Delta({.kind = AnswerPart::Kind::kText, .text = answer.text});
    }
    for (const auto& [call, written] : answer.calls) {
      (void)Delta({.kind = AnswerPart::Kind::kCallBegin, .call = call});
      (void)Delta({.kind = AnswerPart::Kind::kCallArguments, .text = written});
      (void)Delta({.kind = AnswerPart::Kind::kCallEnd});
    }
    if (output_.empty() && !open_) (void)OpenMessage();
    (void)CloseItem(result.stop == StopReason::kLength ? "incomplete" : "completed");
    return Finished(result);
  }

  std::string Failure(const ApiError& error) override {
    Json response = setup_.response;
    response["status"] = "failed";
    response["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                         {"message", error.message}};
    response["output"] = output_;
    return NumberedEvent("response.failed", {{"response", std::move(response)}});
  }

  // Returns the events of a response that has ended, those after the number `after`.
  Result<std::string> Replay(const StoredResponse& stored, std::int64_t after) {
    skipped_ = after;
    const Json& response = stored.response;
    const Json& output = response["output"];
    std::string out = Start({});
    for (std::size_t i = 0; i < output.size(); ++i) {
      out += ReplayItem(output[i], i < stored.pieces.size() ? stored.pieces[i] : Json());
    }
    const bool complete = response["status"] == "completed";
    out += NumberedEvent(complete ? "response.completed" : "response.incomplete",
                         {{"response", response}});
    if (after < sequence_) return out;
    return InvalidArgument(StrCat("is ", after, "; the last event has the number ", sequence_ - 1));
  }

 private:
  // `pieces`: the bytes of the text's pieces.
  std::string ReplayItem(const Json& item, const Json& pieces) {
    if (item["type"] == "function_call") return ReplayCall(item, pieces);
    setup_.seals_thoughts = item.contains("encrypted_content");
    Json begun = item;
    begun["status"] = "in_progress";
    begun["content"] = Json::array();
    begun.erase("encrypted_content");
    std::string out =
        OpenItem(std::move(begun), item["type"] == "message" ? AnswerPart::Kind::kText
                                                             : AnswerPart::Kind::kReasoning);
    for (const std::string& piece : Cut(item["content"][0]["text"], pieces))
      out += TextDelta(piece);
    return out + CloseItem(item["status"].get_ref<const std::string&>().c_str());
  }

  std::string ReplayCall(const Json& item, const Json& pieces) {
    Json begun = item;
    begun["arguments"] = "";
    begun["status"] = "in_progress";
    std::string out = OpenCall(std::move(begun));
    for (const std::string& piece : Cut(item["arguments"], pieces)) out += CallDelta(piece);
    return out + CloseCall(item["status"].get_ref<const std::string&>().c_str());
  }

  static std::vector<std::string> Cut(const std::string& text, const Json& sizes) {
    std::vector<std::string> pieces;
    std::size_t at = 0;
    for (const Json& size : sizes) {
      pieces.push_back(text.substr(at, size.get<std::size_t>()));
      at += pieces.back().size();
    }
    return pieces;
  }

  bool is_text() const { return kind_ == AnswerPart::Kind::kText; }

  std::string NumberedEvent(const char* type, const Json& fields) {
    const std::int64_t number = sequence_++;
    if (number <= skipped_) return {};
    Json event = {{"type", type}, {"sequence_number", number}};
    event.update(fields);
    return TypedEvent(event);
  }

  // The fields that say where a delta belongs.
  Json Place() const {
    return {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}};
  }

  Json Part(const std::string& text) const {
    if (!is_text()) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  std::string ItemEvent(const char* type) {
    return NumberedEvent(type, {{"output_index", output_.size()}, {"item", item_}});
  }

  static Json NewItem(AnswerPart::Kind kind) {
    if (kind == AnswerPart::Kind::kText) {
      return {{"type", "message"},
              {"id", NewId("msg_")},
              {"status", "in_progress"},
              {"role", "assistant"},
              {"content", Json::array()}};
    }
    return {{"type", "reasoning"},
            {"id", NewId("rs_")},
            {"status", "in_progress"},
            {"summary", Json::array()},
            {"content", Json::array()}};
  }

  std::string OpenMessage() {
    return OpenItem(NewItem(AnswerPart::Kind::kText), AnswerPart::Kind::kText);
  }

  std::string OpenItem(Json item, AnswerPart::Kind kind) {
    open_ = true;
    kind_ = kind;
    text_.clear();
    item_ = std::move(item);
    std::string out = ItemEvent("response.output_item.added");
    Json part = Place();
    part["part"] = Part("");
    return out + NumberedEvent("response.content_part.added", part);
  }

  std::string TextDelta(const std::string& text) {
    text_ += text;
    pieces_.push_back(text.size());
    Json delta = Place();
    delta["delta"] = text;
    if (is_text()) delta["logprobs"] = Json::array();
    return NumberedEvent(is_text() ? "response.output_text.delta" : "response.reasoning_text.delta",
                         delta);
  }

  std::string CloseItem(const char* status) {
    if (!std::exchange(open_, false)) return {};
    Json done = Place();
    done["text"] = text_;
    if (is_text()) done["logprobs"] = Json::array();
    Json part = Place();
    part["part"] = Part(text_);
    item_["status"] = status;
    item_["content"].push_back(part["part"]);
    if (!is_text() && setup_.seals_thoughts) item_["encrypted_content"] = SealThoughts(text_);
    std::string out = NumberedEvent(
        is_text() ? "response.output_text.done" : "response.reasoning_text.done", done);
    out += NumberedEvent("response.content_part.done", part);
    return out + PushItem();
  }

  std::string PushItem() {
    std::string out = ItemEvent("response.output_item.done");
    output_.push_back(std::exchange(item_, Json()));
    all_pieces_.push_back(std::exchange(pieces_, Json::array()));
    return out;
  }

  static Json NewCall(const ToolCall& call) {
    return {{"type", "function_call"}, {"id", NewId("fc_")}, {"call_id", CallId(call, "call_")},
            {"name", call.name},       {"arguments", ""},    {"status", "in_progress"}};
  }

  // A call that is open is closed before anything else comes.
  std::string OpenCall(Json item) {
    text_.clear();
    item_ = std::move(item);
    return ItemEvent("response.output_item.added");
  }

  std::string CallDelta(const std::string& text) {
    text_ += text;
    pieces_.push_back(text.size());
    return NumberedEvent(
        "response.function_call_arguments.delta",
        {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"delta", text}});
  }

  std::string CloseCall(const char* status) {
    item_["arguments"] = text_;
    item_["status"] = status;
    std::string out =
        NumberedEvent("response.function_call_arguments.done", {{"item_id", item_["id"]},
                                                                {"output_index", output_.size()},
                                                                {"name", item_["name"]},
                                                                {"arguments", text_}});
    return out + PushItem();
  }

  // Returns the response at its end, and keeps it.
  Json Finished(const TextResult& result) {
    Json& response = setup_.response;
    const bool complete = result.stop != StopReason::kLength;
    response["status"] = complete ? "completed" : "incomplete";
    if (complete) {
      response["completed_at"] = UnixSeconds();
    } else {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response["output"] = output_;
    response["usage"] = Usage(result);
    // The client of an interrupted request has left without the response's end.
    if (setup_.store != nullptr && result.stop != StopReason::kInterrupted) {
      setup_.store->Put({.response = response,
                         .items = std::move(setup_.items),
                         .pieces = std::move(all_pieces_),
                         .owner = setup_.owner});
    }
    return response;
  }

  AnswerSetup setup_;
  Json output_ = Json::array();  // the items that are done
  Json item_;                    // the next one
  bool open_ = false;            // whether it has begun
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;
  std::string text_;                 // of the item
  Json pieces_ = Json::array();      // the bytes of the text's pieces
  Json all_pieces_ = Json::array();  // those of the items that are done
  std::int64_t sequence_ = 0;
  std::int64_t skipped_ = -1;  // the last event that is not written
};

}  // namespace

std::shared_ptr<AnswerShape> MakeShape(AnswerSetup setup) {
  return std::make_shared<Shape>(std::move(setup));
}

Result<std::string> EventsOf(const StoredResponse& stored, std::int64_t after) {
  Json begun = stored.response;
  begun["status"] = "in_progress";
  begun["output"] = Json::array();
  for (const char* const name : {"completed_at", "incomplete_details", "usage"}) {
    begun[name] = nullptr;
  }
  return Shape({.response = std::move(begun)}).Replay(stored, after);
}

}  // namespace kvcache::server::responses
