// Reads the metadata of one architecture, "ARCHITECTURE.key", with range checks. It records the
// keys that were read: a setting that no code reads is an error, and never silently a wrong result.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "model/load/spellings.h"

namespace kvcache {

class KeyReader {
 public:
  // `architecture` is the file's general.architecture. `file` must outlive the reader.
  KeyReader(const GgufFile& file, std::string_view architecture)
      : file_(file),
        prefix_(std::string(architecture) + "."),
        spelling_(FindSpelling(architecture)) {}

  const GgufFile& file() const { return file_; }
  // Returns the architecture's name here, which files may write otherwise (spellings.h).
  std::string_view architecture() const {
    return ArchitectureOf(std::string_view(prefix_).substr(0, prefix_.size() - 1));
  }
  // Returns "ARCHITECTURE.key", with the names that the file has.
  std::string Key(std::string_view key) const;
  bool Has(std::string_view key) const;

  // Reads an integer from 1 to `limit`. Errors name the key: kNotFound if it is missing,
  // kInvalidArgument if it has another type, kCorrupt if it is out of range. IntOr returns
  // `otherwise` for a missing key.
  Result<int> Int(std::string_view key, std::int64_t limit);
  Result<int> IntOr(std::string_view key, std::int64_t limit, int otherwise);

  // The same, but returns 0 if the key is missing or 0.
  Result<int> IntOrZero(std::string_view key, std::int64_t limit);

  // Reads one value for all layers, or an array with one value per layer. Returns [layers] values,
  // each from `min` to `limit`. Errors as for Int.
  Result<std::vector<int>> PerLayer(std::string_view key, std::int64_t limit, int layers,
                                    int min = 1);

  // Read a finite number, a bool or a string. The Or forms return `otherwise` for a missing key.
  Result<double> Float(std::string_view key);
  Result<double> FloatOr(std::string_view key, double otherwise);
  Result<bool> BoolOr(std::string_view key, bool otherwise);
  Result<std::string_view> StringOr(std::string_view key, std::string_view otherwise);

  // Marks the key as read: the family does not depend on its value.
  void Ignore(std::string_view key) { Used(key); }

  // Marks all keys that begin with `prefix`.
  void IgnoreAll(std::string_view prefix);
  // Reads an array of integers. The result is a view into the file.
  Result<GgufInts> Ints(std::string_view key) { return file_.GetInts(Used(key)); }

  // Returns the error for a setting that is not supported: "KEY is VALUE: not supported".
  Status Unsupported(std::string_view key) const;

  // Returns kUnsupported with key and value for the first setting of the architecture that no call
  // above has read. Ignores settings that are 0 or false, which are off, and a few keys that do not
  // affect the computation.
  Status CheckAllUsed() const;

 private:
  std::string Used(std::string_view key);
  Result<int> InRange(std::string_view key, std::int64_t value, std::int64_t limit,
                      int min = 1) const;
  Result<double> Finite(std::string_view key, Result<double> value) const;

  const GgufFile& file_;
  std::string prefix_;
  const Spelling* spelling_;  // null: the file has the names here
  std::set<std::string, std::less<>> used_;
};

}  // namespace kvcache
