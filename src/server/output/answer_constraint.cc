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

Result<AnswerForm> Finish(GrammarBuilder& builder, GrammarSymbol root, bool framed = false) {
  auto grammar = builder.Finish(root);
  if (!grammar.ok()) {
    return Status(grammar.status().code(), "the schema " + grammar.status().message());
  }
  Form form{.framed = framed};
  if (auto wanted = WantedPart(*grammar)) {
    form.wanted = std::make_shared<const Grammar>(*std::move(wanted));
  }
  form.allowed = std::make_shared<const Grammar>(*std::move(grammar));
  return AnswerForm(std::make_shared<const Form>(std::move(form)));
}

// Returns what stands behind thoughts at the beginning of a text.
std::string_view BehindThoughts(std::string_view text, const ThoughtSyntax& thoughts) {
  constexpr std::string_view kSpaces = " \r\n\t";
  const std::size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  const std::size_t end = thoughts.end.empty() ? text.npos : text.find(thoughts.end);
  if (!text.substr(begin).starts_with(thoughts.begin) || end == text.npos) return text;
  const std::string_view rest = text.substr(end + thoughts.end.size());
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
  GrammarBuilder builder;
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol root, AddCalls(calls, dialect, builder));
  return Finish(builder, root, true);
}

Result<AnswerForm> Framed(const AnswerForm& form, const Dialect& dialect) {
  const bool channels = dialect.calls.form == CallForm::kChannels;
  if (form->framed || (!channels && dialect.text_begin.empty())) return form;
  GrammarBuilder builder;
  const GrammarSymbol root = builder.Copy(*form->allowed);
  if (channels) {
    const std::string header = StrCat(dialect.calls.call_begin, "final", dialect.calls.name_end);
    return Finish(builder, builder.AnyOf({Joined(builder.Literal(header), {root})}), true);
  }
  const GrammarSequence wrapped = Joined(Joined(builder.Literal(dialect.text_begin), {root}),
                                         builder.Literal(dialect.text_end));
  return Finish(builder, builder.AnyOf({{root}, wrapped}), true);
}

Result<AnswerForm> EitherForm(const AnswerForm& a, const AnswerForm& b) {
  GrammarBuilder builder;
  const GrammarSymbol first = builder.Copy(*a->allowed);
  return Finish(builder, builder.AnyOf({{first}, {builder.Copy(*b->allowed)}}),
                a->framed && b->framed);
}

Result<AnswerForm> AfterThoughts(const AnswerForm& form, Thoughts thoughts,
                                 const Dialect& dialect) {
  GrammarBuilder builder;
  ByteSet spaces;
  spaces.set(' ').set('\n');
  GrammarSequence rest = builder.Repeat(builder.Bytes(spaces), 0, 4);
  const bool channels = dialect.calls.form == CallForm::kChannels;
  // Thoughts in a channel are a message of their own.
  if (channels) rest = builder.Literal(dialect.calls.section_begin + "assistant");
  const GrammarSymbol root = builder.Copy(*form->allowed);
  rest.push_back(root);
  const GrammarSymbol begun = TextUpTo(dialect.thoughts.end, rest, false, builder);
  if (thoughts == Thoughts::kBegun) return Finish(builder, begun);
  return Finish(builder,
                builder.AnyOf({{root}, Joined(builder.Literal(dialect.thoughts.begin), {begun})}));
}

Result<AnswerForm> FramedForms::Of(const AnswerForm& form, std::optional<Thoughts> thoughts,
                                   const Dialect& dialect) {
  const std::lock_guard lock(mutex_);
  if (form_ == form && thoughts_ == thoughts) return after_;
  KVCACHE_ASSIGN_OR_RETURN(AnswerForm after, Framed(form, dialect));
  if (thoughts) {
    KVCACHE_ASSIGN_OR_RETURN(after, AfterThoughts(after, *thoughts, dialect));
  }
  after_ = std::move(after);
  form_ = form;
  thoughts_ = thoughts;
  return after_;
}

std::shared_ptr<const TokenTable> MakeTokenTable(const Engine& engine, const Dialect& dialect) {
  const Tokenizer& tokenizer = engine.tokenizer();
  std::vector<std::string> pieces(static_cast<std::size_t>(engine.vocabulary_size()));
  std::vector<std::int32_t> ends;
  for (std::int32_t token = 0; token < engine.vocabulary_size(); ++token) {
    std::string& piece = pieces[static_cast<std::size_t>(token)];
    if (engine.IsEndOfGeneration(token)) {
      ends.push_back(token);
    } else if (tokenizer.vocabulary().Has(token)) {
      const TokenKind kind = tokenizer.vocabulary().kind(token);
      const bool has_text =
          kind == TokenKind::kNormal || kind == TokenKind::kByte || kind == TokenKind::kUserDefined;
      if (has_text) tokenizer.AppendPiece(token, &piece);
      // Bytes never spell the edges of a marker.
      if (piece.find(kEdge) != std::string::npos) piece.clear();
    }
    const std::vector<std::int32_t>& markers = dialect.marker_tokens;
    if (std::binary_search(markers.begin(), markers.end(), token)) {
      piece = kEdge + tokenizer.Piece(token, ControlText::kShown) + kEdge;
    }
  }
  return std::make_shared<const TokenTable>(std::move(pieces), std::move(ends));
}

Result<std::shared_ptr<FormConstraint>> MakeConstraint(
    const std::shared_ptr<const TokenTable>& table, const Form& form, std::string_view begun,
    const ThoughtSyntax& thoughts) {
  for (const std::string_view text : {begun, BehindThoughts(begun, thoughts)}) {
    auto constraint = std::make_shared<MaskConstraint>(table, form);
    if (constraint->Begin(text)) return std::shared_ptr<FormConstraint>(std::move(constraint));
    KVCACHE_RETURN_IF_ERROR(constraint->TooLarge());
  }
  return InvalidArgument(StrCat(
      "no answer of the form that is asked for begins with the last message, ", Quoted(begun)));
}

}  // namespace kvcache::server
