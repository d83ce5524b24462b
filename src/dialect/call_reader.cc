#include "dialect/call_reader.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "json/json_text.h"

namespace kvcache {
namespace {

// A longer name is none.
constexpr std::size_t kMaxName = 256;
constexpr std::size_t kMaxMarker = 64;  // no dialect's marker is longer

bool Has(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool IsIdKey(const std::string& key) {
  return key == "id" || key == "call_id" || key == "tool_call_id";
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

}  // namespace

void CallReader::Begin(std::string_view marker) {
  state_ = State::kOpen;
  raw_ = marker;
  calls_ = 0;
  in_list_ = entered_ = false;
  const bool without_section = marker.empty() && !syntax_.section_begin.empty();
  const bool unmarked_name = syntax_.form == CallForm::kParameters && syntax_.name_end.empty();
  known_only_ = syntax_.bare() || syntax_.known_only || without_section || unmarked_name;
}

CallReader::Outcome CallReader::Read(std::string_view& text, bool last,
                                     std::vector<AnswerPart>* parts) {
  for (bool goes_on = true; goes_on;) {
    const std::string_view before = text;
    const int calls = calls_;
    const bool behind_call = state_ == State::kTail;
    goes_on = Step(text, last, parts);
    if (calls_ > calls || behind_call || writer_.reported()) {
      raw_.clear();
    } else {
      raw_ += before.substr(0, before.size() - text.size());
    }
  }
  if (state_ == State::kNoCall && writer_.reported()) {
    // It was a call up to here.
    EndCall(parts);
    state_ = State::kEnd;
  }
  if (state_ == State::kEnd) return Outcome::kEnd;
  if (state_ == State::kNoCall) return Outcome::kNoCall;
  if (!last) return Outcome::kMore;
  raw_ += text;
  text = {};
  if (writer_.reported()) {
    EndCall(parts);
    raw_.clear();
  }
  return called() && Trimmed(raw_).empty() ? Outcome::kEnd : Outcome::kNoCall;
}

bool CallReader::Step(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  switch (state_) {
    case State::kOpen: return AtOpen(text, last);
    case State::kName: return InName(text, parts);
    case State::kObject: return InObject(text, last, parts);
    case State::kArguments: return InArguments(text, last, parts);
    case State::kTail: return AtTail(text, last);
    case State::kEnd:
    case State::kNoCall: return false;
  }
  return false;
}

// What is no call ends the section if it had one. The rest is text.
bool CallReader::Fail() {
  state_ = called() && !entered_ ? State::kEnd : State::kNoCall;
  return false;
}

// The same behind the first bytes of a text, as if they had come alone.
bool CallReader::FailAt(std::size_t size, std::string_view& text) {
  text.remove_prefix(size);
  return Fail();
}

bool CallReader::AtOpen(std::string_view& text, bool last) {
  entered_ = false;
  SkipSpaces(text);
  if (text.empty()) return false;
  if (TakeMarker(text, syntax_.section_end)) {
    state_ = called() ? State::kEnd : State::kNoCall;
    return false;
  }
  const bool may_be = Begins(text, syntax_.section_end) || Begins(text, syntax_.call_begin);
  if (may_be && !last) return false;
  if (in_list_ && text[0] == ']') {
    text.remove_prefix(1);
    in_list_ = false;
    state_ = syntax_.section_end.empty() ? State::kEnd : State::kOpen;
    return state_ == State::kOpen;
  }
  if (in_list_ && calls_ > 0 && text[0] == ',') {
    text.remove_prefix(1);
    return true;
  }
  // Models close one bracket too many.
  const bool stray = std::string_view("}]),").find(text[0]) != std::string_view::npos;
  if (called() && stray && !syntax_.section_end.empty()) {
    text.remove_prefix(1);
    return true;
  }
  return Enter(text);
}

bool CallReader::Enter(std::string_view& text) {
  const bool lists = objects() || syntax_.form == CallForm::kPython;
  if (lists && !in_list_ && calls_ == 0 && text[0] == '[') {
    text.remove_prefix(1);
    in_list_ = true;
    return true;
  }
  writer_.Reset();
  given_ = false;
  reader_.reset();
  if (objects() && text[0] == '{' && (calls_ == 0 || in_list_ || !syntax_.section_end.empty())) {
    text.remove_prefix(1);
    entered_ = true;
    state_ = State::kObject;
    place_ = Place::kKey;
    depth_ = 1;
    return true;
  }
  if (syntax_.form == CallForm::kPython && (in_list_ || !syntax_.bare()) &&
      IsNameCharacter(text[0])) {
    entered_ = true;
    state_ = State::kName;
    return true;
  }
  if (!lists && TakeMarker(text, syntax_.call_begin)) {
    entered_ = true;
    state_ = State::kName;
    return true;
  }
  return Fail();
}

std::size_t CallReader::EndOfName(std::string_view text) const {
  if (syntax_.form == CallForm::kPython) {
    const auto* const end = std::find_if_not(text.begin(), text.end(), IsNameCharacter);
    return end == text.end() ? std::string_view::npos
                             : static_cast<std::size_t>(end - text.begin());
  }
  std::size_t end = text.find_first_of(syntax_.name_end.empty() ? "\n<{" : "{");
  if (syntax_.form == CallForm::kParameters && !syntax_.name_end.empty()) end = text.npos;
  const FoundMarker found = FindMarker(
      text, {syntax_.name_end, syntax_.call_end, syntax_.section_end, syntax_.parameter_begin});
  // A marker in the middle of the name is the id's.
  if (end <= found.certain && end != text.npos) return end;
  return found.at;
}

bool CallReader::InName(std::string_view& text, std::vector<AnswerPart>* parts) {
  if (syntax_.name_end.empty() || syntax_.form == CallForm::kPython) SkipSpaces(text);
  const std::size_t end = EndOfName(text);
  // A name that is too long is none, wherever the text is cut: its end may begin at kMaxName.
  const bool unended = end == std::string_view::npos;
  if (unended ? text.size() > kMaxName + kMaxMarker : end > kMaxName) return Fail();
  if (unended) return false;
  SetName(text.substr(0, end));
  text.remove_prefix(end);
  if (syntax_.form == CallForm::kPython || syntax_.form == CallForm::kBraces) {
    if (!TakeMarker(text, syntax_.form == CallForm::kPython ? "(" : "{")) return Fail();
  } else {
    (void)TakeMarker(text, syntax_.name_end);
  }
  given_ = true;
  if (!Report(parts)) return Fail();
  reader_ = MakeReader();
  state_ = State::kArguments;
  return true;
}

void CallReader::SetName(std::string_view text) {
  ToolCall& call = writer_.call();
  const std::size_t id = syntax_.id_begin.empty() ? text.npos : text.find(syntax_.id_begin);
  if (id != text.npos) {
    call.id = Trimmed(text.substr(id + syntax_.id_begin.size()));
    text = text.substr(0, id);
  }
  text = Trimmed(text);
  if (syntax_.numbered && text.rfind(':') != text.npos) {
    call.id = text;
    text = text.substr(0, text.rfind(':'));
  }
  (void)TakeMarker(text, syntax_.name_prefix);
  call.name = text;
}

std::unique_ptr<ArgumentReader> CallReader::MakeReader() const {
  if (syntax_.form == CallForm::kPython || syntax_.form == CallForm::kBraces) {
    return std::make_unique<LiteralArguments>(syntax_.form == CallForm::kPython ? std::string()
                                                                                : syntax_.quote);
  }
  if (syntax_.form != CallForm::kParameters) return std::make_unique<JsonArguments>();
  const auto found = std::find_if(tools_.begin(), tools_.end(), [this](const OfferedTool& tool) {
    return tool.name == writer_.call().name;
  });
  return std::make_unique<ParameterArguments>(syntax_,
                                              found == tools_.end() ? nullptr : &found->parameters);
}

bool CallReader::Offered(std::string_view name) const {
  return std::any_of(tools_.begin(), tools_.end(),
                     [&](const OfferedTool& tool) { return tool.name == name; });
}

bool CallReader::Report(std::vector<AnswerPart>* parts) {
  const std::string& name = writer_.call().name;
  if (name.empty() || (known_only_ && !Offered(name))) return false;
  // A control token in a name or an id is of another call, or of none.
  if ((name + writer_.call().id).find(kEdge) != std::string::npos) return false;
  writer_.Report(parts);
  return true;
}

bool CallReader::InArguments(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  std::string out;
  const bool ended = reader_->Read(text, last, &out);
  writer_.Give(out, parts);
  if (!ended) return false;
  if (objects()) {
    place_ = Place::kAfter;
    state_ = State::kObject;
    return true;
  }
  EndCall(parts);
  state_ = State::kTail;
  return true;
}

void CallReader::EndCall(std::vector<AnswerPart>* parts) {
  writer_.End(reader_ == nullptr ? "" : reader_->Closing(), parts);
  reader_.reset();
  entered_ = false;
  ++calls_;
}

bool CallReader::AtTail(std::string_view& text, bool last) {
  // Without a marker the spaces are what AtOpen finds, also if they come alone.
  if (!syntax_.call_end.empty()) {
    SkipSpaces(text);
    if (Begins(text, syntax_.call_end) && !last) return false;
    (void)TakeMarker(text, syntax_.call_end);
  }
  state_ = State::kOpen;
  return !text.empty();
}

bool CallReader::InObject(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  if (place_ != Place::kString && place_ != Place::kSkip) SkipSpaces(text);
  if (text.empty()) return false;
  switch (place_) {
    case Place::kKey: return AtKey(text, parts);
    case Place::kColon:
      if (text[0] != ':') return Fail();
      text.remove_prefix(1);
      place_ = Place::kValue;
      return true;
    case Place::kValue: return AtValue(text, parts);
    case Place::kString: return InString(text, parts);
    case Place::kSkip: return InSkipped(text);
    case Place::kAfter:
      if (text[0] != ',' && text[0] != '}') return writer_.reported() ? EndObject(parts) : Fail();
      if (text[0] == ',') text.remove_prefix(1);
      place_ = Place::kKey;
      return true;
  }
  return last;
}

bool CallReader::AtKey(std::string_view& text, std::vector<AnswerPart>* parts) {
  if (text[0] == '"') {
    text.remove_prefix(1);
    string_ = "\"";
    scan_ = {};
    (void)scan_.Take('"');
    is_key_ = true;
    place_ = Place::kString;
    return true;
  }
  if (text[0] != '}') return writer_.reported() ? EndObject(parts) : Fail();
  text.remove_prefix(1);
  if (--depth_ > 0) {
    place_ = Place::kAfter;
    return true;
  }
  return EndObject(parts);
}

bool CallReader::EndObject(std::vector<AnswerPart>* parts) {
  // Without a marker, an object that says nothing of arguments is no call.
  if (syntax_.bare() && !given_) return Fail();
  if (!Report(parts)) return Fail();
  EndCall(parts);
  state_ = State::kTail;
  return true;
}

bool CallReader::AtValue(std::string_view& text, std::vector<AnswerPart>* parts) {
  const bool is_arguments = syntax_.form == CallForm::kKeyed ? writer_.call().name == key_
                                                             : Has(syntax_.argument_keys, key_);
  if (is_arguments && !given_) {
    given_ = true;
    if (!writer_.call().name.empty() && !Report(parts)) return Fail();
    reader_ = std::make_unique<JsonArguments>();
    state_ = State::kArguments;
    return true;
  }
  if (key_ == "function" && text[0] == '{') {
    text.remove_prefix(1);
    ++depth_;
    place_ = Place::kKey;
    return true;
  }
  scan_ = {};
  is_key_ = false;
  place_ = text[0] == '"' ? Place::kString : Place::kSkip;
  is_plain_ = text[0] != '{' && text[0] != '[';
  if (place_ == Place::kString) {
    text.remove_prefix(1);
    string_ = "\"";
    (void)scan_.Take('"');
  }
  return true;
}

bool CallReader::InString(std::string_view& text, std::vector<AnswerPart>* parts) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == kEdge) return FailAt(i, text);
    if (!scan_.Take(text[i])) continue;
    string_ += text.substr(0, i + 1);
    text.remove_prefix(i + 1);
    return TakeString(parts) || Fail();
  }
  string_ += text;
  text = {};
  return false;
}

bool CallReader::TakeString(std::vector<AnswerPart>* parts) {
  const auto parsed = ParseJson(string_);
  if (!parsed.ok() || !parsed->is_string()) return false;
  auto value = parsed->get<std::string>();
  ToolCall& call = writer_.call();
  place_ = is_key_ ? Place::kColon : Place::kAfter;
  if (is_key_) {
    if (syntax_.form == CallForm::kKeyed && call.name.empty()) call.name = value;
    key_ = std::move(value);
  } else if (Has(syntax_.name_keys, key_) && call.name.empty()) {
    call.name = std::move(value);
    // Without a marker, only arguments say that it is a call.
    return (syntax_.bare() && !given_) || Report(parts);
  } else if (IsIdKey(key_)) {
    call.id = std::move(value);
  }
  return true;
}

bool CallReader::InSkipped(std::string_view& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool ends =
        is_plain_ ? text[i] == ',' || text[i] == '}' || text[i] == ']' : scan_.Take(text[i]);
    if (text[i] == kEdge) return FailAt(i, text);
    if (!ends) continue;
    text.remove_prefix(is_plain_ ? i : i + 1);
    place_ = Place::kAfter;
    return true;
  }
  text = {};
  return false;
}

}  // namespace kvcache
