#include "model_store/modelfile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kSpaces = " \t";
constexpr std::string_view kTripleQuote = R"(""")";

enum class ValueKind : std::uint8_t { kInteger, kReal, kBoolean, kText };

struct Parameter {
  std::string_view name;
  ValueKind kind;
};

// Ollama's parameters. docs/models.md lists those that have an effect here.
constexpr std::array kParameters = {
    Parameter{"num_ctx", ValueKind::kInteger},
    Parameter{"num_predict", ValueKind::kInteger},
    Parameter{"num_keep", ValueKind::kInteger},
    Parameter{"num_batch", ValueKind::kInteger},
    Parameter{"num_gpu", ValueKind::kInteger},
    Parameter{"num_thread", ValueKind::kInteger},
    Parameter{"main_gpu", ValueKind::kInteger},
    Parameter{"seed", ValueKind::kInteger},
    Parameter{"top_k", ValueKind::kInteger},
    Parameter{"repeat_last_n", ValueKind::kInteger},
    Parameter{"temperature", ValueKind::kReal},
    Parameter{"top_p", ValueKind::kReal},
    Parameter{"min_p", ValueKind::kReal},
    Parameter{"repeat_penalty", ValueKind::kReal},
    Parameter{"presence_penalty", ValueKind::kReal},
    Parameter{"frequency_penalty", ValueKind::kReal},
    Parameter{"use_mmap", ValueKind::kBoolean},
    Parameter{"stop", ValueKind::kText},
};

std::string_view Trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Returns the value between its quotes, or nothing while the closing ones are missing.
std::optional<std::string_view> Unquote(std::string_view text) {
  for (const std::string_view quote : {kTripleQuote, std::string_view(R"(")")}) {
    if (!text.starts_with(quote)) continue;
    if (text.size() < 2 * quote.size() || !text.ends_with(quote)) return std::nullopt;
    return text.substr(quote.size(), text.size() - 2 * quote.size());
  }
  return text;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

template <typename Number>
bool IsNumber(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return false;
  return std::isfinite(static_cast<double>(number));
}

bool IsVersion(std::string_view text) {
  int dots = 0;
  bool digit = false;  // the last character is one
  for (const char c : text) {
    if (c == '.' && digit) {
      ++dots;
      digit = false;
    } else if (c >= '0' && c <= '9') {
      digit = true;
    } else {
      return false;
    }
  }
  return digit && dots <= 2;
}

// Returns the numbers of a version, each without leading zeros and with its length before it, so that they
// are ordered as numbers of any length.
std::array<std::pair<std::size_t, std::string>, 3> Numbers(std::string_view version) {
  std::array<std::pair<std::size_t, std::string>, 3> numbers;
  for (auto& [length, digits] : numbers) {
    const std::size_t dot = std::min(version.find('.'), version.size());
    digits = version.substr(0, dot);
    digits.erase(0, digits.find_first_not_of('0'));
    length = digits.size();
    version.remove_prefix(std::min(dot + 1, version.size()));
  }
  return numbers;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<Modelfile> Parse() {
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);
    while (!rest_.empty()) {
      const std::string line = NextLine();
      first_line_ = line_;
      const std::string_view text = Trim(line);
      if (text.empty() || text.front() == '#') continue;
      Status status = ReadInstruction(text);
      if (!status.ok()) return std::move(status).WithContext(StrCat("line ", first_line_));
    }
    if (file_.from.empty()) {
      return InvalidArgument(StrCat("line ", std::max(line_, 1), ": the file ends without FROM"));
    }
    return std::move(file_);
  }

 private:
  std::string NextLine() {
    ++line_;
    const std::size_t end = rest_.find('\n');
    std::string line(rest_.substr(0, end));
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  // Cuts the first word from `text`.
  static std::string_view CutWord(std::string_view* text) {
    const std::size_t end = text->find_first_of(kSpaces);
    const std::string_view word = text->substr(0, end);
    text->remove_prefix(std::min(word.size(), text->size()));
    *text = Trim(*text);
    return word;
  }

  // Returns the value that begins with `text`, and reads the lines until its quotes close.
  Result<std::string> ReadValue(std::string_view text) {
    std::string value(text);
    auto unquoted = Unquote(Trim(value));
    while (!unquoted && !rest_.empty()) {
      value += '\n';
      value += NextLine();
      unquoted = Unquote(Trim(value));
    }
    if (!unquoted) return InvalidArgument("its quotes are never closed");
    return std::string(*unquoted);
  }

  Status ReadInstruction(std::string_view text) {
    const std::string word(CutWord(&text));
    const std::string name = Lower(word);
    if (name == "parameter") return ReadParameter(text);
    if (name == "message") return ReadMessage(text);
    static constexpr std::array kOthers = {"from",     "draft",   "template", "system", "license",
                                           "requires", "adapter", "renderer", "parser"};
    if (std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end()) {
      return InvalidArgument(
          StrCat(Quoted(word),
                 " is no instruction; there are FROM, DRAFT, ADAPTER, PARAMETER, "
                 "TEMPLATE, SYSTEM, MESSAGE, LICENSE and REQUIRES"));
    }
    if (text.empty()) return InvalidArgument(StrCat(word, " has no value"));
    KVCACHE_ASSIGN_OR_RETURN(std::string value, ReadValue(text));
    return Set(name, std::move(value));
  }

  Status ReadParameter(std::string_view text) {
    const std::string name(CutWord(&text));
    if (name.empty() || text.empty()) return InvalidArgument("PARAMETER needs a name and a value");
    KVCACHE_ASSIGN_OR_RETURN(std::string value, ReadValue(text));
    KVCACHE_RETURN_IF_ERROR(CheckParameter(name, value));
    std::vector<StoredParameter>& all = file_.parameters;
    if (name != "stop") std::erase_if(all, [&](const auto& each) { return each.first == name; });
    all.emplace_back(name, std::move(value));
    return Status::Ok();
  }

  Status ReadMessage(std::string_view text) {
    const std::string role(CutWord(&text));
    if (role != "system" && role != "user" && role != "assistant") {
      return InvalidArgument(
          StrCat("the role of MESSAGE is ", Quoted(role), "; must be system, user or assistant"));
    }
    if (text.empty()) return InvalidArgument("MESSAGE has no text");
    KVCACHE_ASSIGN_OR_RETURN(std::string value, ReadValue(text));
    file_.messages.push_back({role, std::move(value)});
    return Status::Ok();
  }

  static Status SetOnce(std::string_view name, std::string value, std::string* target) {
    if (!target->empty()) return InvalidArgument(StrCat("there is a second ", name));
    if (value.empty()) return InvalidArgument(StrCat(name, " is empty"));
    *target = std::move(value);
    return Status::Ok();
  }

  Status Set(const std::string& name, std::string value) {
    if (name == "from") return SetOnce("FROM", std::move(value), &file_.from);
    if (name == "draft") return SetOnce("DRAFT", std::move(value), &file_.draft);
    if (name == "requires") {
      if (!IsVersion(value)) {
        return InvalidArgument(
            StrCat("REQUIRES is ", Quoted(value), "; must be a version, such as 0.14.0"));
      }
      return SetOnce("REQUIRES", std::move(value), &file_.requires_version);
    }
    if (name == "adapter") {
      if (value.empty()) return InvalidArgument("ADAPTER is empty");
      file_.adapters.push_back(std::move(value));
      return Status::Ok();
    }
    if (name == "renderer" || name == "parser") {
      return Unsupported(
          "RENDERER and PARSER name code of another program; leave them out, and "
          "the model's own template is used");
    }
    if (name == "license") {
      file_.licenses.push_back(std::move(value));
    } else {
      (name == "system" ? file_.system : file_.chat_template) = std::move(value);
    }
    return Status::Ok();
  }

  std::string_view rest_;
  int line_ = 0;        // of the last line that was read
  int first_line_ = 0;  // of the instruction
  Modelfile file_;
};

void AddInstruction(std::string_view name, std::string_view value, std::string* text) {
  const bool plain = !value.empty() && Trim(value) == value && value.front() != '"' &&
                     value.find_first_of("\n\r") == std::string_view::npos;
  const std::string_view quote = plain ? "" : kTripleQuote;
  *text += StrCat(name, " ", quote, value, quote, "\n");
}

}  // namespace

Status CheckParameter(const std::string& name, const std::string& value) {
  const auto known = std::find_if(kParameters.begin(), kParameters.end(),
                                  [&](const Parameter& each) { return each.name == name; });
  if (known == kParameters.end()) {
    return InvalidArgument(StrCat("there is no parameter ", Quoted(name)));
  }
  const auto wrong = [&](std::string_view kind) {
    return InvalidArgument(StrCat("PARAMETER ", name, " is ", Quoted(value), "; must be ", kind));
  };
  switch (known->kind) {
    case ValueKind::kInteger:
      return IsNumber<std::int64_t>(value) ? Status::Ok() : wrong("a whole number");
    case ValueKind::kReal: return IsNumber<double>(value) ? Status::Ok() : wrong("a number");
    case ValueKind::kBoolean:
      return value == "true" || value == "false" ? Status::Ok() : wrong("true or false");
    case ValueKind::kText: return value.empty() ? wrong("a text") : Status::Ok();
  }
  return Status::Ok();
}

Result<Modelfile> ParseModelfile(std::string_view text) {
  if (text.size() > kMaxModelfileBytes) {
    return InvalidArgument(StrCat("the Modelfile has ", text.size(), " bytes; at most ",
                                  kMaxModelfileBytes, " are read"));
  }
  return Parser(text).Parse();
}

Status CheckRequires(const std::string& requires_version, const std::string& program) {
  if (requires_version.empty() || Numbers(requires_version) <= Numbers(program)) {
    return Status::Ok();
  }
  return Unsupported(StrCat("REQUIRES is ", requires_version, ", this program is ", program,
                            "; use a later version, or leave REQUIRES out"));
}

std::string ModelfileText(const Modelfile& file) {
  std::string text;
  AddInstruction("FROM", file.from, &text);
  if (!file.draft.empty()) AddInstruction("DRAFT", file.draft, &text);
  for (const std::string& adapter : file.adapters) AddInstruction("ADAPTER", adapter, &text);
  for (const auto& [name, value] : file.parameters) {
    AddInstruction(StrCat("PARAMETER ", name), value, &text);
  }
  if (file.chat_template) AddInstruction("TEMPLATE", *file.chat_template, &text);
  if (file.system) AddInstruction("SYSTEM", *file.system, &text);
  for (const StoredMessage& message : file.messages) {
    AddInstruction(StrCat("MESSAGE ", message.role), message.content, &text);
  }
  for (const std::string& license : file.licenses) AddInstruction("LICENSE", license, &text);
  if (!file.requires_version.empty()) AddInstruction("REQUIRES", file.requires_version, &text);
  return text;
}

bool IsGoTemplate(std::string_view text) {
  if (text.find("{%") != std::string_view::npos) return false;  // a tag of Jinja
  static constexpr std::array kWords = {"if",   "else",   "end",   "range",
                                        "with", "define", "block", "template"};
  for (std::size_t at = text.find("{{"); at != std::string_view::npos; at = text.find("{{", at)) {
    at += 2;
    std::string_view action = text.substr(at, text.find("}}", at) - at);
    if (action.starts_with('-')) action.remove_prefix(1);
    action = Trim(action);
    if (action.starts_with('.') || action.starts_with('$')) return true;
    const std::string_view word = action.substr(0, action.find_first_of(" -"));
    if (std::find(kWords.begin(), kWords.end(), word) != kWords.end()) return true;
  }
  return false;
}

}  // namespace kvcache
