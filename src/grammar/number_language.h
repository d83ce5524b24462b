// The JSON numbers of a range, in all ways to write them: 100, 1e2, 100.0.
//
// Each part of a number has at most 100 digits (more if a bound has more), and an exponent 3. Where a unit such as
// 0.25 or 7 divides the numbers, which takes remainders, they have no exponent. Numbers with a unit, whole ones
// too, have no -0. All are finite as doubles, and are in the range as doubles, too.
//
// Thread safety: as ByteLanguage.
#pragma once

#include <memory>
#include <string_view>

#include "grammar/byte_language.h"
#include "grammar/number_range.h"

namespace kvcache {

class NumberLanguage final : public ByteLanguage {
 public:
  explicit NumberLanguage(const NumberRange& range) : range_(range.ForDoubles()) {}

  std::unique_ptr<ByteReader> Reader() const override;
  // Returns whether a number of JSON, as text, belongs to the language.
  bool Has(std::string_view text) const;

 private:
  NumberRange range_;
};

}  // namespace kvcache
