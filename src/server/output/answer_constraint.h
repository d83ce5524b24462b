// What a request says about the form of its answer, as a constraint of its tokens: JSON, a JSON schema, or
// calls of tools.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/grammar/call_grammar.h"
#include "grammar/grammar.h"
#include "grammar/token_mask.h"
#include "kvcache_engine/scheduler.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Which texts an answer may be.
struct Form {
  bool framed = false;  // it has the markers of the dialect
  std::shared_ptr<const Grammar> allowed{};
  std::shared_ptr<const Grammar> wanted{};  // WantedPart of `allowed`; null: there is none
};
// The form of an answer, which all choices share; null: any text.
using AnswerForm = std::shared_ptr<const Form>;

// Returns the form of any JSON object.
AnswerForm JsonObjectForm();
// Returns the form of a schema. Errors: those of AddJsonSchema.
Result<AnswerForm> SchemaForm(const Json& schema);
// Returns the form of texts that are one of these. Errors: kInvalidArgument if they are too large together.
Result<AnswerForm> ChoiceForm(const std::vector<std::string>& choices);
// Returns the form of calls in a dialect. Errors: those of AddCalls.
Result<AnswerForm> CallsForm(const CallRule& calls, const Dialect& dialect);
// Returns a form with what a dialect writes around texts. Errors: kInvalidArgument if it is too large.
Result<AnswerForm> Framed(const AnswerForm& form, const Dialect& dialect);
// Returns the form of texts that have either form. Errors: kInvalidArgument if both are too large together.
Result<AnswerForm> EitherForm(const AnswerForm& a, const AnswerForm& b);
// Returns the form behind thoughts that the prompt has begun, or that the answer may begin with. Errors:
// kInvalidArgument if it is too large.
enum class Thoughts : std::uint8_t { kBegun, kMayBegin };
Result<AnswerForm> AfterThoughts(const AnswerForm& form, Thoughts thoughts, const Dialect& dialect);
// Makes forms behind thoughts, with what the dialect writes around texts, and keeps the last one, because all choices of a request need the same form.
// Thread safety: any number of threads.
class FramedForms {
 public:
  Result<AnswerForm> Of(const AnswerForm& form, std::optional<Thoughts> thoughts,
                        const Dialect& dialect);

 private:
  std::mutex mutex_;
  AnswerForm form_, after_;
  std::optional<Thoughts> thoughts_;
};

// Returns the texts of a model's tokens for masks; those of the dialect's markers have edges.
std::shared_ptr<const TokenTable> MakeTokenTable(const Engine& engine, const Dialect& dialect);
// Follows a form.
class FormConstraint : public TokenConstraint {
 public:
  // Looks for the tokens that may come first. Returns TooLarge() of them.
  virtual Status FindFirst() = 0;
  // Returns the error of a form that is too large, as far as the text has come; Ok: it is not.
  virtual Status TooLarge() const = 0;
};
// Returns a constraint for the rest of one text that begins with `begun`. Thoughts at its beginning, between
// the marks of `thoughts`, may be no part of the form. Errors: kInvalidArgument if no text of the form begins so, or if the form is too large.
Result<std::shared_ptr<FormConstraint>> MakeConstraint(
    const std::shared_ptr<const TokenTable>& table, const Form& form, std::string_view begun,
    const ThoughtSyntax& thoughts);

}  // namespace kvcache::server
