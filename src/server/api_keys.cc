#include "server/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMinKey = 16;  // characters
constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

Sha256Hash HashOf(std::string_view text) {
  return Sha256Of(std::as_bytes(std::span(text.data(), text.size())));
}

// 0 is the salt of servers without keys.
std::uint64_t SaltOf(std::string_view kind, std::string_view text) {
  const Sha256Hash hash = HashOf(StrCat("kvcache user, ", kind, ": ", text));
  std::uint64_t salt = 0;
  std::memcpy(&salt, hash.data(), sizeof(salt));
  return salt | 1;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
    if (line.empty() || line.front() == '#') return words;
    const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

Result<User> ReadUser(const std::vector<std::string_view>& words) {
  const std::string_view key = words.front();
  if (key.size() < kMinKey || key.size() > kMaxKey) {
    return InvalidArgument(
        StrCat("the key has ", key.size(), " characters; must have ", kMinKey, " to ", kMaxKey));
  }
  const auto is_visible = [](char c) { return c > ' ' && c <= '~'; };
  if (!std::all_of(key.begin(), key.end(), is_visible)) {
    return InvalidArgument("the key must be of visible ASCII characters");
  }
  User user{.salt = SaltOf("key", key)};
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "admin") {
      user.is_admin = true;
    } else if (word.starts_with("name=") && word.size() > 5) {
      user.name = word.substr(5);
    } else if (word.starts_with("group=") && word.size() > 6) {
      user.salt = SaltOf("group", word.substr(6));
    } else {
      return InvalidArgument(StrCat("word ", i + 1, " must be admin, name=… or group=…"));
    }
  }
  return user;
}

}  // namespace

Result<ApiKeys> ApiKeys::Parse(std::string_view text, std::string_view place) {
  ApiKeys keys;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = Words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    auto user = ReadUser(words);
    const std::string line = StrCat(place, ", line ", number);
    if (!user.ok()) return std::move(user).TakeStatus().WithContext(line);
    if (!keys.users_.emplace(HashOf(words.front()), std::move(user).value()).second) {
      return InvalidArgument(StrCat(line, ": the key occurs twice"));
    }
  }
  if (!keys.users_.empty()) return keys;
  return InvalidArgument(StrCat(place, ": there is no key in it"));
}

Result<ApiKeys> ApiKeys::Read(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    return Status(StatusCode::kIo, StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(facts.st_mode)) {
    return InvalidArgument(StrCat(path, ": it is no regular file"));
  }
  if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return InvalidArgument(
        StrCat(path, ": other users can read the keys; 'chmod 600' protects them"));
  }
  if (facts.st_size > static_cast<off_t>(kMaxBytes)) {
    return InvalidArgument(
        StrCat(path, ": it has ", facts.st_size, " bytes; must have ", kMaxBytes, " at most"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(StatusCode::kIo, StrCat(path, ": ", std::strerror(errno)));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return Parse(text, path);
}

const User* ApiKeys::Find(std::string_view key) const {
  const auto found = users_.find(HashOf(key));
  return found == users_.end() ? nullptr : &found->second;
}

}  // namespace kvcache::server
