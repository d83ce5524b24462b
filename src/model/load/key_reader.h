// Reads the metadata of one architecture, "ARCHITECTURE.key", with range checks, and remembers
// what was asked for: a setting that nobody knows is an error instead of a wrong answer.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/status.h"

namespace kvcache {

class KeyReader {
 public:
  // `file` must outlive it.
  KeyReader(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string_view architecture() const {
    return std::string_view(prefix_).substr(0, prefix_.size() - 1);
  }
  std::string Key(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const;

  // Integers from 1 to `limit`. Errors name the key: kNotFound for a missing one,
  // kInvalidArgument for one of another type, kCorrupt for one out of range.
  Result<int> Int(std::string_view key, std::int64_t limit);
  Result<int> IntOr(std::string_view key, std::int64_t limit, int otherwise);

  // 0 where the key is missing or 0, else as Int.
  Result<int> IntOrZero(std::string_view key, std::int64_t limit);

  // One value for all layers, or an array with one each: [layers]. Values from `least` on.
  Result<std::vector<int>> PerLayer(std::string_view key, std::int64_t limit, int layers,
                                    int least = 1);

  // A finite number.
  Result<double> Float(std::string_view key);
  Result<double> FloatOr(std::string_view key, double otherwise);
  Result<bool> BoolOr(std::string_view key, bool otherwise);
  Result<std::string_view> StringOr(std::string_view key, std::string_view otherwise);

  // Reads nothing: the family does without this one, whatever it says.
  void Ignore(std::string_view key) { Used(key); }

  // The same for all keys that begin so.
  void IgnoreAll(std::string_view prefix);
  // An array of integers.
  Result<GgufInts> Ints(std::string_view key) { return file_.GetInts(Used(key)); }

  // The error for a setting that is not served: "KEY is VALUE: not served".
  Status Unsupported(std::string_view key) const;

  // kUnsupported, with key and value, for the first setting of the architecture that none of the
  // above has read, unless it is 0 or false (it is off) or known to say nothing about what is
  // computed.
  Status CheckAllUsed() const;

 private:
  std::string Used(std::string_view key);
  Result<int> InRange(std::string_view key, std::int64_t value, std::int64_t limit,
                      int least = 1) const;
  Result<double> Finite(std::string_view key, Result<double> value) const;

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace kvcache
