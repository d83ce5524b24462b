#include "dialect/grammar/call_grammar.h"

#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "dialect/grammar/argument_grammar.h"
#include "dialect/scan.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns for each number of bytes of `end` that were read, and each byte, how many are read then.
std::vector<std::vector<std::size_t>> Followed(std::string_view end) {
  std::vector<std::vector<std::size_t>> next(end.size(), std::vector<std::size_t>(256, 0));
  std::size_t shorter = 0;  // the state of the text without its first byte
  for (std::size_t i = 0; i < end.size(); ++i) {
    const auto byte = static_cast<unsigned char>(end[i]);
    if (i > 0) next[i] = next[shorter];
    next[i][byte] = i + 1;
    if (i > 0) shorter = next[shorter][byte];
  }
  return next;
}

class CallGrammar {
 public:
  CallGrammar(const CallRule& rule, const Dialect& dialect, GrammarBuilder& builder)
      : rule_(rule),
        syntax_(dialect.calls),
        builder_(builder),
        arguments_(syntax_, rule.loose, builder),
        line_(builder.AnyOf({{}, builder.Literal("\n")})) {}

  Result<GrammarSymbol> Answers() {
    const GrammarSymbol call = builder_.NewRule();
    for (const Json& tool : rule_.tools) {
      const Json& function = tool["function"];
      auto one = CallOf(function["name"].get<std::string>(), function.value("parameters", Json()));
      if (!one.ok()) {
        return Status(one.status().code(),
                      StrCat("the tool ", Quoted(function["name"].get<std::string>()), ": ",
                             one.status().message()));
      }
      builder_.Add(call, *std::move(one));
    }
    if (syntax_.form == CallForm::kChannels) return InChannels(call);
    return Framed(call);
  }

 private:
  // Adds a call of one tool, without a marker that all calls begin with.
  Result<GrammarSequence> CallOf(const std::string& name, const Json& schema) {
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSequence arguments, arguments_.Of(schema));
    switch (syntax_.form) {
      case CallForm::kObject: return ObjectOf(name, arguments);
      case CallForm::kKeyed:
        return Joined(
            Joined(Joined(builder_.Literal("{" + Json(name).dump()), {arguments_.json().Colon()}),
                   arguments),
            builder_.Literal("}"));
      case CallForm::kPython: return Joined(builder_.Literal(name + "("), arguments);
      case CallForm::kBraces:
        return Joined(Joined(builder_.Literal(name + "{"), arguments),
                      builder_.Literal(syntax_.call_end));
      case CallForm::kChannels:
        return Joined(
            builder_.Literal(StrCat(name, " ", syntax_.value_begin, "json", syntax_.name_end)),
            arguments);
      default: break;
    }
    GrammarSequence call = builder_.Literal(syntax_.name_prefix + name);
    if (syntax_.numbered) {
      call = Joined(Joined(std::move(call), builder_.Literal(":")),
                    builder_.Repeat(builder_.Range('0', '9'), 1, 4));
    }
    call = Joined(std::move(call), builder_.Literal(syntax_.name_end));
    if (syntax_.form == CallForm::kParameters) call.push_back(line_);
    call = Joined(std::move(call), arguments);
    if (!syntax_.call_end.empty()) call.push_back(line_);
    return Joined(std::move(call), builder_.Literal(syntax_.call_end));
  }

  // {"name": …, "arguments": {…}}, or with other keys.
  GrammarSequence ObjectOf(const std::string& name, const GrammarSequence& arguments) {
    JsonGrammar& json = arguments_.json();
    std::vector<GrammarSequence> keys;
    for (const std::string& key : syntax_.argument_keys) {
      keys.push_back(builder_.Literal(Json(key).dump()));
    }
    GrammarSequence call = builder_.Literal("{");
    if (syntax_.name_keys.front() == "tool_name") {
      // Command models number their calls.
      GrammarSequence id = Joined(builder_.Literal("\"tool_call_id\""), {json.Colon()});
      id = Joined(Joined(std::move(id), builder_.Literal("\"")),
                  builder_.Repeat(builder_.Range('0', '9'), 1, 3));
      call.push_back(builder_.AnyOf(
          {{}, Joined(Joined(std::move(id), builder_.Literal("\"")), {json.Comma()})}));
    }
    call = Joined(std::move(call), builder_.Literal(Json(syntax_.name_keys.front()).dump()));
    call = Joined(std::move(call), {json.Colon()});
    call = Joined(std::move(call), builder_.Literal(Json(name).dump()));
    call = Joined(std::move(call), {json.Comma(), builder_.AnyOf(std::move(keys)), json.Colon()});
    return Joined(Joined(std::move(call), arguments), builder_.Literal("}"));
  }

  // Returns one or more times a sequence, with a separator between them.
  GrammarSequence Some(const GrammarSequence& one, const GrammarSequence& separator) {
    if (rule_.one) return one;
    const GrammarSymbol again = builder_.AnyOf({Joined(separator, one)});
    return Joined(one, builder_.Repeat(again, 0, -1));
  }

  // Adds the markers around calls, and the text before them.
  Result<GrammarSymbol> Framed(GrammarSymbol call) {
    // Models without markers call one tool.
    if (syntax_.bare() && syntax_.form == CallForm::kObject) {
      return rule_.forced ? builder_.AnyOf({{call}}) : OrText({call});
    }
    GrammarSequence calls = {call};
    std::string begin = syntax_.call_begin;
    if (syntax_.listed) {
      const GrammarSymbol comma =
          builder_.AnyOf({builder_.Literal(","), builder_.Literal(", "), builder_.Literal(",\n")});
      calls = Joined(Joined(Joined(builder_.Literal("["), {line_}), Some(calls, {comma})),
                     Joined({line_}, builder_.Literal("]")));
    }
    if (syntax_.bare() && !rule_.forced) return OrText(calls);
    if (!syntax_.section_begin.empty()) {
      begin = syntax_.section_begin;
      const GrammarSequence one = Joined(builder_.Literal(syntax_.call_begin), calls);
      calls = Joined({line_}, syntax_.shared ? Some(one, {line_}) : one);
      if (!syntax_.section_end.empty()) calls.push_back(line_);
      calls = Joined(std::move(calls), builder_.Literal(syntax_.section_end));
    }
    // `calls` stand behind `begin`.
    const bool repeats = !syntax_.shared && !syntax_.listed && !rule_.one && !begin.empty();
    if (repeats) {
      const GrammarSymbol again =
          builder_.AnyOf({Joined(Joined({line_}, builder_.Literal(begin)), calls)});
      calls = Joined(std::move(calls), builder_.Repeat(again, 0, -1));
    }
    const GrammarSymbol rest = builder_.AnyOf({calls});
    if (!rule_.forced) return TextUpTo(begin, {rest}, true, builder_);
    return builder_.AnyOf({Joined(builder_.Literal(begin), {rest})});
  }

  // Adds calls without markers, and texts that do not begin as they do.
  GrammarSymbol OrText(const GrammarSequence& calls) {
    const bool object = syntax_.form == CallForm::kObject;
    const GrammarSymbol answer = TextWithout(object ? "{[" : "[");
    builder_.Add(answer, calls);
    if (object) builder_.Add(answer, Joined(builder_.Literal("["), {TextWithout("{")}));
    return answer;
  }

  // Adds texts that do not begin with one of some brackets.
  GrammarSymbol TextWithout(std::string_view brackets) {
    ByteSet spaces, others;
    for (const char c : kWhiteSpace) spaces.set(static_cast<unsigned char>(c));
    others = ~spaces;
    for (const char c : brackets) others.reset(static_cast<unsigned char>(c));
    const GrammarSymbol text = builder_.NewRule();
    builder_.Add(text, {});
    builder_.Add(text, {builder_.Bytes(spaces), text});
    builder_.Add(text, Joined({builder_.Bytes(others)},
                              builder_.Repeat(builder_.Bytes(ByteSet().set()), 0, -1)));
    return text;
  }

  // A call follows the header of its channel. What comes before it is a message of its own.
  Result<GrammarSymbol> InChannels(GrammarSymbol call) {
    const std::string recipient = " to=functions.";
    if (!rule_.forced) return TextUpTo(recipient, {call}, true, builder_);
    return builder_.AnyOf(
        {Joined(builder_.Literal(StrCat(syntax_.call_begin, "commentary", recipient)), {call})});
  }

  const CallRule& rule_;
  const CallSyntax& syntax_;
  GrammarBuilder& builder_;
  ArgumentGrammar arguments_;
  const GrammarSymbol line_;  // perhaps a line break
};

}  // namespace

GrammarSymbol TextUpTo(std::string_view end, const GrammarSequence& rest, bool may_stop,
                       GrammarBuilder& builder) {
  const GrammarSymbol behind = builder.AnyOf({rest});
  std::vector<GrammarSymbol> states;
  for (std::size_t i = 0; i < end.size(); ++i) states.push_back(builder.NewRule());
  const auto next = Followed(end);
  for (std::size_t i = 0; i < end.size(); ++i) {
    std::vector<ByteSet> by_state(end.size() + 1);
    for (std::size_t byte = 0; byte < 256; ++byte) by_state[next[i][byte]].set(byte);
    for (std::size_t to = 0; to <= end.size(); ++to) {
      // A control token that does not end a value is no part of it.
      if (to == 0 && !may_stop) by_state[to].reset(static_cast<unsigned char>(kEdge));
      if (by_state[to].none()) continue;
      builder.Add(states[i], {builder.Bytes(by_state[to]), to == end.size() ? behind : states[to]});
    }
    if (may_stop) builder.Add(states[i], {});
  }
  return states.empty() ? behind : states[0];
}

Result<GrammarSymbol> AddCalls(const CallRule& rule, const Dialect& dialect,
                               GrammarBuilder& builder) {
  return CallGrammar(rule, dialect, builder).Answers();
}

}  // namespace kvcache
