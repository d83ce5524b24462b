// The keys that may use a server, and whose prefixes each of them shares. Lines of a file:
//
//   # comments and empty lines are skipped
//   KEY                     a user of its own
//   KEY name=alice          with a name for logs
//   KEY group=editors       users of one group share prefixes and stored responses
//   KEY admin               may also see what concerns all users
//
// A user's salt depends on the key or the group alone, so that prefixes in a store are found after a restart.
//
// Thread safety: as thread-safe as a const std::map.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "kvcache/status.h"

namespace kvcache::server {

struct User {
  std::uint64_t salt = 0;
  std::string name{};
  bool is_admin = false;
};

class ApiKeys {
 public:
  // Reads a file, which nobody but its owner may read. Errors name the line, and never a key.
  static Result<ApiKeys> Read(const std::string& path);
  // Reads its text. `place` is for messages.
  static Result<ApiKeys> Parse(std::string_view text, std::string_view place);

  // Returns the user with this key; null if there is none. The time depends on a hash of the key, and says
  // nothing of the keys in the file.
  const User* Find(std::string_view key) const;
  std::size_t size() const { return users_.size(); }

 private:
  std::map<Sha256Hash, User> users_;
};

}  // namespace kvcache::server
