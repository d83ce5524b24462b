// Reads the calls of one section of an answer.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/answer_part.h"
#include "dialect/argument_reader.h"
#include "dialect/call_writer.h"

namespace kvcache {

class CallReader {
 public:
  enum class Outcome : std::uint8_t {
    kMore,   // more text is needed
    kEnd,    // the calls have ended
    kNoCall  // what was read since the last call is none: raw()
  };

  // All must outlive this. `one_call`: the calls end after the first one.
  CallReader(const CallSyntax& syntax, const std::vector<OfferedTool>& tools, bool one_call)
      : syntax_(syntax), tools_(tools), one_call_(one_call) {}

  // Begins behind `marker`, which the text had: section_begin, or nothing.
  void Begin(std::string_view marker);
  // Takes what it can from the front of `text`, and adds what it means to `parts`. What it leaves comes again, with
  // more behind it. `last`: nothing follows.
  Outcome Read(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  // Returns the text that was no call.
  const std::string& raw() const { return raw_; }
  // Returns whether a call was read since Begin.
  bool called() const { return calls_ > 0; }

 private:
  enum class State : std::uint8_t { kOpen, kName, kObject, kArguments, kTail, kEnd, kNoCall };
  // Where in an object a reader is.
  enum class Place : std::uint8_t { kKey, kColon, kValue, kSkip, kString, kAfter };

  // Goes one step on. Returns false if more text is needed, or there is nothing more to do.
  bool Step(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  bool AtOpen(std::string_view& text, bool last);
  bool Enter(std::string_view& text);
  bool InName(std::string_view& text, std::vector<AnswerPart>* parts);
  std::size_t EndOfName(std::string_view text) const;
  bool InObject(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  bool AtKey(std::string_view& text, std::vector<AnswerPart>* parts);
  bool AtValue(std::string_view& text, std::vector<AnswerPart>* parts);
  bool InString(std::string_view& text, std::vector<AnswerPart>* parts);
  bool InSkipped(std::string_view& text);
  bool InArguments(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  bool AtTail(std::string_view& text, bool last);
  bool EndObject(std::vector<AnswerPart>* parts);
  bool Fail();
  bool FailAt(std::size_t size, std::string_view& text);

  // Takes a key or a value that is whole. Returns false if it is none.
  bool TakeString(std::vector<AnswerPart>* parts);
  // Divides what stands before the arguments into the name and the id.
  void SetName(std::string_view text);
  // Reports the call if its name is known. Returns false if it is no call.
  bool Report(std::vector<AnswerPart>* parts);
  bool Offered(std::string_view name) const;
  std::unique_ptr<ArgumentReader> MakeReader() const;
  void EndCall(std::vector<AnswerPart>* parts);
  bool objects() const {
    return syntax_.form == CallForm::kObject || syntax_.form == CallForm::kKeyed;
  }

  const CallSyntax& syntax_;
  const std::vector<OfferedTool>& tools_;
  const bool one_call_;
  State state_ = State::kOpen;
  bool known_only_ = false;  // only calls of offered tools are calls
  bool in_list_ = false;
  bool entered_ = false;  // the call that is read has begun
  int calls_ = 0;
  std::string raw_;  // what was read since the last call

  CallWriter writer_;
  bool given_ = false;  // there are arguments
  std::unique_ptr<ArgumentReader> reader_;

  Place place_ = Place::kKey;
  int depth_ = 0;  // of objects
  JsonScan scan_;
  std::string string_;  // a key or a value, as JSON
  std::string key_;
  bool is_key_ = false;
  bool is_plain_ = false;  // the value that is skipped has no brackets
};

}  // namespace kvcache
