#include "gguf/split_file.h"

#include <algorithm>
#include <filesystem>

#include "base/parse_number.h"
#include "base/strings.h"

namespace kvcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".gguf";
constexpr std::string_view kOf = "-of-";
constexpr std::size_t kDigits = 5;

std::string FiveDigits(int number) {
  const std::string text = StrCat(number);
  return std::string(kDigits - std::min(kDigits, text.size()), '0') + text;
}

// Cuts five digits from the end of `text`.
std::optional<int> CutNumber(std::string_view* text) {
  if (text->size() < kDigits) return std::nullopt;
  const std::string_view digits = text->substr(text->size() - kDigits);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  text->remove_suffix(kDigits);
  return ParseNumber<int>(std::string(digits));
}

}  // namespace

std::string SplitName::Path(int number) const {
  return StrCat(prefix, "-", FiveDigits(number), kOf, FiveDigits(count), kSuffix);
}

std::optional<SplitName> ParseSplitName(std::string_view path) {
  if (!path.ends_with(kSuffix)) return std::nullopt;
  path.remove_suffix(kSuffix.size());
  const auto count = CutNumber(&path);
  if (!count || !path.ends_with(kOf)) return std::nullopt;
  path.remove_suffix(kOf.size());
  const auto part = CutNumber(&path);
  if (!part || !path.ends_with('-') || *part < 1 || *part > *count) return std::nullopt;
  path.remove_suffix(1);
  return SplitName{std::string(path), *part, *count};
}

std::vector<std::string> PartPaths(const std::string& path) {
  std::error_code ignored;
  const std::size_t name = path.rfind('/') + 1;  // 0 without a folder
  if (path.find(',', name) != std::string::npos && !fs::exists(path, ignored)) {
    const std::string folder = path.substr(0, name);
    std::vector<std::string> paths;
    for (std::size_t begin = name; begin <= path.size();) {
      const std::size_t end = std::min(path.find(',', begin), path.size());
      paths.push_back(folder + path.substr(begin, end - begin));
      begin = end + 1;
    }
    return paths;
  }
  const auto split = ParseSplitName(path);
  if (!split || split->count == 1) return {path};
  std::vector<std::string> paths;
  for (int part = 1; part <= split->count; ++part) paths.push_back(split->Path(part));
  return paths;
}

std::string JoinedPath(const std::vector<std::string>& paths) {
  if (paths.size() > 1 && paths == PartPaths(paths.front())) return paths.front();
  std::string joined;
  for (const std::string& path : paths) {
    joined += joined.empty() ? path : StrCat(",", path.substr(path.rfind('/') + 1));
  }
  return joined;
}

bool IsSplitKey(std::string_view key) {
  return key.starts_with("split.");
}

}  // namespace kvcache
