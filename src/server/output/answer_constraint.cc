#include "server/output/answer_constraint.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "grammar/json_grammar.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/keywords.h"

namespace kvcache::server {
namespace {

// An unwanted token must be so much likelier than the wanted ones: e to this power. A bias of 100 is enough.
constexpr float kReluctance = 80.0F;

// Follows a form. A model that does not know when an object is complete would add properties for ever. So unwanted
// text has to be much likelier than the rest, until it is begun.
class MaskConstraint final : public FormConstraint {
 public:
  MaskConstraint(const std::shared_ptr<const TokenTable>& table, const Form& form)
      : tokens_(table->size()), allowed_(table, form.allowed) {
    if (form.wanted != nullptr) wanted_.emplace(table, form.wanted);
  }

  bool Begin(std::string_view text) {
    if (wanted_ && !wanted_->Begin(text)) wanted_.reset();
    return allowed_.Begin(text);
  }
  bool Apply(std::span<float> logits) override {
    if (!allowed_.Apply(logits)) return false;
    if (wanted_ && !wanted_->Lower(logits, kReluctance)) wanted_.reset();
    return true;
  }
  bool Take(std::int32_t token) override {
    if (wanted_ && !wanted_->Take(token)) wanted_.reset();
    return allowed_.Take(token);
  }
  bool complete() const override { return allowed_.complete(); }
  Status FindFirst() override {
    std::vector<float> logits(tokens_);
    (void)allowed_.Apply(logits);
    return TooLarge();
  }
  Status TooLarge() const override {
    if (!allowed_.full()) return Status::Ok();
    return InvalidArgument(StrCat("the form that is asked for is too large: it needs more than ",
                                  GrammarAutomaton::kMaxStates, " states, or more than ",
                                  GrammarAutomaton::kMaxPlaces, " places in one of them"));
  }

 private:
  std::size_t tokens_;  // of the vocabulary
  TokenMask allowed_;
  std::optional<TokenMask> wanted_;  // none: an unwanted text was begun, or there is none
};

Result<AnswerForm> Finish(GrammarBuilder& builder, GrammarSymbol root) {
  auto grammar = builder.Finish(root);
  if (!grammar.ok()) {
    return Status(grammar.status().code(), "the schema " + grammar.status().message());
  }
  Form form;
  if (auto wanted = WantedPart(*grammar)) {
    form.wanted = std::make_shared<const Grammar>(*std::move(wanted));
  }
  form.allowed = std::make_shared<const Grammar>(*std::move(grammar));
  return AnswerForm(std::make_shared<const Form>(std::move(form)));
}

// Returns whether a schema says nothing of what an object has.
bool IsOfNoParameters(const Json& schema) {
  return std::all_of(schema.items().begin(), schema.items().end(), [](const auto& item) {
    const SchemaKeyword* const known = FindKeyword(item.key());
    return item.key() == "type" || known == nullptr || known->merge == SchemaMerge::kIgnored;
  });
}

// Returns the schema of the objects that a schema allows: arguments are nothing else, and {} allows any value. A tool
// whose schema says nothing of parameters wants none.
Result<Json> ObjectsOf(const Json& schema) {
  if (schema.is_null()) return Json{{"type", "object"}, {"properties", Json::object()}};
  const Json type = schema.value("type", Json("object"));
  const bool listed =
      type.is_array() && std::find(type.begin(), type.end(), "object") != type.end();
  if (type != "object" && !listed) {
    return InvalidArgument(
        StrCat("its parameters have the 'type' ", type.dump(), "; must be \"object\""));
  }
  Json objects = schema;
  objects["type"] = "object";
  if (IsOfNoParameters(objects)) objects["properties"] = Json::object();
  return objects;
}

// Adds the arguments of a call: what the schema says.
Result<GrammarSymbol> Arguments(const Json& schema, GrammarBuilder& builder) {
  KVCACHE_ASSIGN_OR_RETURN(const Json objects, ObjectsOf(schema));
  return AddJsonSchema(objects, builder);
}

// The same, or any object if the schema cannot be enforced.
Result<GrammarSymbol> LooseArguments(const Json& schema, GrammarBuilder& builder,
                                     JsonGrammar& json) {
  GrammarBuilder apart;
  const auto root = Arguments(schema, apart);
  if (!root.ok()) return json.AnyObject();
  const auto form = apart.Finish(*root);
  return form.ok() ? builder.Copy(*form) : json.AnyObject();
}

// Adds a call of one tool: {"name": …, "arguments": {…}}, or with "parameters".
// `loose`: as CallRule::loose.
Result<GrammarSequence> CallOf(const Json& function, bool loose, GrammarBuilder& builder,
                               JsonGrammar& json) {
  const Json schema = function.value("parameters", Json());
  auto arguments = loose ? LooseArguments(schema, builder, json) : Arguments(schema, builder);
  if (!arguments.ok()) {
    return Status(arguments.status().code(),
                  StrCat("the tool ", Quoted(function["name"].get<std::string>()), ": ",
                         arguments.status().message()));
  }
  const GrammarSymbol key =
      builder.AnyOf({builder.Literal("\"arguments\""), builder.Literal("\"parameters\"")});
  GrammarSequence call = Joined(builder.Literal("{\"name\""), {json.Colon()});
  call = Joined(std::move(call), builder.Literal(function["name"].dump()));
  call = Joined(std::move(call), {json.Comma(), key, json.Colon(), *arguments});
  return Joined(std::move(call), builder.Literal("}"));
}

// Makes the rules of all texts that end with the first `end`: state i has read i of its bytes. `may_stop`: the
// text may also end before. REQUIRES: the first byte of `end` comes once in it.
GrammarSymbol TextUpTo(std::string_view end, GrammarSymbol rest, bool may_stop,
                       GrammarBuilder& builder) {
  std::vector<GrammarSymbol> states;
  for (std::size_t i = 0; i < end.size(); ++i) states.push_back(builder.NewRule());
  const auto first = static_cast<unsigned char>(end[0]);
  for (std::size_t i = 0; i < end.size(); ++i) {
    const auto next = static_cast<unsigned char>(end[i]);
    ByteSet others;
    others.set();
    others.reset(next);
    others.reset(first);
    builder.Add(states[i], {builder.Bytes(others), states[0]});
    if (i > 0) builder.Add(states[i], {builder.Range(first, first), states[1]});
    builder.Add(states[i], {builder.Range(next, next), i + 1 == end.size() ? rest : states[i + 1]});
    if (may_stop) builder.Add(states[i], {});
  }
  return states[0];
}

// Returns what stands behind thoughts at the beginning of a text.
std::string_view BehindThoughts(std::string_view text) {
  constexpr std::string_view kSpaces = " \r\n\t";
  constexpr std::string_view kEnd = "</think>";
  const std::size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  const std::size_t end = text.find(kEnd);
  if (!text.substr(begin).starts_with("<think>") || end == std::string_view::npos) return text;
  const std::string_view rest = text.substr(end + kEnd.size());
  return rest.substr(std::min(rest.find_first_not_of(kSpaces), rest.size()));
}

}  // namespace

AnswerForm JsonObjectForm() {
  static const AnswerForm form = [] {
    GrammarBuilder builder;
    return *Finish(builder, JsonGrammar(builder).AnyObject());
  }();
  return form;
}

Result<AnswerForm> SchemaForm(const Json& schema) {
  GrammarBuilder builder;
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol root, AddJsonSchema(schema, builder));
  return Finish(builder, root);
}

Result<AnswerForm> ChoiceForm(const std::vector<std::string>& choices) {
  GrammarBuilder builder;
  std::vector<GrammarSequence> texts;
  for (const std::string& choice : choices) texts.push_back(builder.Literal(choice));
  return Finish(builder, builder.AnyOf(std::move(texts)));
}

Result<AnswerForm> CallsForm(const CallRule& calls, const Dialect& dialect) {
  constexpr std::string_view kBegin = "<tool_call>";
  const bool tags = !dialect.calls.bare();
  if (!calls.forced && !tags) {
    return Unsupported(
        "the model writes calls without tags; calls follow a schema only if they are forced");
  }
  GrammarBuilder builder;
  JsonGrammar json(builder);
  const GrammarSymbol call = builder.NewRule();
  for (const Json& tool : calls.tools) {
    KVCACHE_ASSIGN_OR_RETURN(GrammarSequence one,
                             CallOf(tool["function"], calls.loose, builder, json));
    builder.Add(call, std::move(one));
  }
  if (!tags) return Finish(builder, builder.AnyOf({{call}}));
  const GrammarSymbol line = builder.AnyOf({{}, builder.Literal("\n")});
  const GrammarSequence inner = Joined({line, call, line}, builder.Literal("</tool_call>"));
  const GrammarSymbol again =
      builder.AnyOf({Joined(Joined({line}, builder.Literal(kBegin)), inner)});
  const GrammarSymbol rest =
      builder.AnyOf({Joined(inner, builder.Repeat(again, 0, calls.one ? 0 : -1))});
  if (!calls.forced) return Finish(builder, TextUpTo(kBegin, rest, true, builder));
  return Finish(builder, builder.AnyOf({Joined(builder.Literal(kBegin), {rest})}));
}

Result<AnswerForm> EitherForm(const AnswerForm& a, const AnswerForm& b) {
  GrammarBuilder builder;
  const GrammarSymbol first = builder.Copy(*a->allowed);
  return Finish(builder, builder.AnyOf({{first}, {builder.Copy(*b->allowed)}}));
}

Result<AnswerForm> AfterThoughts(const AnswerForm& form, Thoughts thoughts) {
  GrammarBuilder builder;
  ByteSet spaces;
  spaces.set(' ').set('\n');
  GrammarSequence rest = builder.Repeat(builder.Bytes(spaces), 0, 4);
  const GrammarSymbol root = builder.Copy(*form->allowed);
  rest.push_back(root);
  const GrammarSymbol begun = TextUpTo("</think>", builder.AnyOf({rest}), false, builder);
  if (thoughts == Thoughts::kBegun) return Finish(builder, begun);
  return Finish(builder, builder.AnyOf({{root}, Joined(builder.Literal("<think>"), {begun})}));
}

Result<AnswerForm> FormsAfterThoughts::Of(const AnswerForm& form, Thoughts thoughts) {
  const std::lock_guard lock(mutex_);
  if (form_ == form && thoughts_ == thoughts) return after_;
  KVCACHE_ASSIGN_OR_RETURN(after_, AfterThoughts(form, thoughts));
  form_ = form;
  thoughts_ = thoughts;
  return after_;
}

std::shared_ptr<const TokenTable> MakeTokenTable(const Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  std::vector<std::string> pieces(static_cast<std::size_t>(engine.vocabulary_size()));
  std::vector<std::int32_t> ends;
  for (std::int32_t token = 0; token < engine.vocabulary_size(); ++token) {
    if (engine.IsEndOfGeneration(token)) {
      ends.push_back(token);
    } else if (tokenizer.vocabulary().Has(token)) {
      const TokenKind kind = tokenizer.vocabulary().kind(token);
      const bool has_text =
          kind == TokenKind::kNormal || kind == TokenKind::kByte || kind == TokenKind::kUserDefined;
      if (has_text) tokenizer.AppendPiece(token, &pieces[static_cast<std::size_t>(token)]);
    }
  }
  return std::make_shared<const TokenTable>(std::move(pieces), std::move(ends));
}

Result<std::shared_ptr<FormConstraint>> MakeConstraint(
    const std::shared_ptr<const TokenTable>& table, const Form& form, std::string_view begun) {
  for (const std::string_view text : {begun, BehindThoughts(begun)}) {
    auto constraint = std::make_shared<MaskConstraint>(table, form);
    if (constraint->Begin(text)) return std::shared_ptr<FormConstraint>(std::move(constraint));
    KVCACHE_RETURN_IF_ERROR(constraint->TooLarge());
  }
  return InvalidArgument(StrCat(
      "no answer of the form that is asked for begins with the last message, ", Quoted(begun)));
}

}  // namespace kvcache::server
