// Reads the arguments of a call as a model writes them, and gives them as JSON, piece by piece.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dialect/dialect.h"
#include "dialect/scan.h"

namespace kvcache {

class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;
  // Takes what it can from the front of `text`, and appends to `out` what it means. What it leaves comes again, with
  // more behind it. `last`: nothing follows. Returns whether the arguments have ended.
  virtual bool Read(std::string_view& text, bool last, std::string* out) = 0;
  // Returns what completes the JSON so far.
  virtual std::string Closing() const = 0;
};

// An object of JSON. Null, nothing, or a text that holds an object are taken too.
class JsonArguments final : public ArgumentReader {
 public:
  bool Read(std::string_view& text, bool last, std::string* out) override;
  std::string Closing() const override { return scan_.Closing(); }

 private:
  enum class State : std::uint8_t { kBefore, kObject, kText, kWord };
  bool InText(std::string_view& text, std::string* out);
  // Takes an escape sequence of at least two bytes. Returns false if it is not whole.
  bool TakeEscape(std::string_view& text, std::string* out);
  void Put(std::string_view text, std::string* out);

  State state_ = State::kBefore;
  JsonScan scan_;
  bool empty_ = true;  // the text has no character yet
  char32_t high_ = 0;  // the first half of a pair of escapes
};

// Literals of Python behind "f(", and braces of Gemma behind "f{".
class LiteralArguments final : public ArgumentReader {
 public:
  // `quote`: around strings; empty: Python's.
  explicit LiteralArguments(std::string quote);
  bool Read(std::string_view& text, bool last, std::string* out) override;
  std::string Closing() const override;

 private:
  bool python() const { return quote_.empty(); }
  bool TakeQuote(std::string_view& text, bool last, bool* wait, std::string* out);
  void InString(std::string_view& text, bool last, bool* wait, std::string* out);
  bool TakeEscape(std::string_view& text, bool last, std::string* out);
  void Structure(char c, std::string* out);
  // Writes what must stand before the next key or value.
  void BeginItem(std::string* out);
  void EndWord(bool key, std::string* out);

  const std::string quote_;
  std::string closers_;  // that the model writes, the outermost first
  std::string word_;     // that has begun
  bool opened_ = false;  // "{" is written
  bool comma_ = false;   // stands before the next item
  bool key_ = true;      // the next item is a key
  std::string end_;      // of the string that has begun; empty: none
};

// Parameters between markers.
class ParameterArguments final : public ArgumentReader {
 public:
  // `schema`: of the parameters; null: unknown. Both must outlive this.
  ParameterArguments(const CallSyntax& syntax, const nlohmann::ordered_json* schema);
  bool Read(std::string_view& text, bool last, std::string* out) override;
  std::string Closing() const override;

 private:
  enum class State : std::uint8_t { kBetween, kName, kKind, kValue };
  bool Step(std::string_view& text, bool last, std::string* out);
  bool TakeName(std::string_view& text);
  bool TakeKind(std::string_view& text, std::string* out);
  bool InValue(std::string_view& text, bool last, std::string* out);
  void BeginValue(std::string* out);
  void EndValue(std::string* out);

  const CallSyntax& syntax_;
  const nlohmann::ordered_json* schema_;
  State state_ = State::kBetween;
  bool ended_ = false;
  bool opened_ = false;   // "{" is written
  bool any_ = false;      // so is a parameter
  bool first_ = false;    // the value has no character yet
  bool streams_ = false;  // the value is a string, and is written as it comes
  std::string name_, kind_, value_;
};

}  // namespace kvcache
