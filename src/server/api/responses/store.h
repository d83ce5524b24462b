// Keeps the responses of /v1/responses in memory, so that a later request can go on from one by its id.
// The number and the bytes are bounded; the response that was not used for the longest time goes first.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/request/fields.h"

namespace kvcache::server {

struct StoredResponse {
  Json response = Json::object();  // as the client has it
  Json items = Json::array();  // of the conversation before the answer, without the instructions
  Json pieces = Json::
      array();  // of each item of the output, the bytes of its texts' pieces as they were streamed
  std::uint64_t owner = 0;  // the salt of its user; others do not find it
};

class ResponseStore {
 public:
  struct Limits {
    std::size_t count = 1024;
    std::size_t bytes = std::size_t{64} << 20;
  };

  explicit ResponseStore(Limits limits) : limits_(limits) {}
  ResponseStore() : ResponseStore(Limits{}) {}

  // Keeps a response under its "id". One that alone has more bytes than the limit is not kept.
  void Put(const StoredResponse& stored);
  // Returns the response, which counts as a use.
  std::optional<StoredResponse> Get(const std::string& id, std::uint64_t owner = 0);
  // Returns the item of a response's output with this id, which counts as a use of the response.
  std::optional<Json> GetItem(const std::string& id, std::uint64_t owner = 0);
  // Returns whether there was such a response.
  bool Remove(const std::string& id, std::uint64_t owner = 0);

  std::size_t count() const;
  std::size_t bytes() const;

 private:
  // Texts take less memory than values of JSON, and their size is known.
  struct Texts {
    std::string response, items, pieces;
  };
  struct Entry {
    std::string id;
    std::uint64_t owner = 0;
    std::shared_ptr<const Texts> texts;
    std::vector<std::string> items{};  // the ids of the output
    std::size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  // Returns the texts; the entry becomes the last one to go. The lock is held.
  std::shared_ptr<const Texts> Use(Entries::iterator entry);
  void Erase(Entries::iterator entry);

  const Limits limits_;
  mutable std::mutex mutex_;
  // The following are guarded by mutex_.
  Entries entries_;  // the last one used comes first
  std::unordered_map<std::string, Entries::iterator> by_id_;
  std::unordered_map<std::string, Entries::iterator> by_item_;
  std::size_t bytes_ = 0;
};

}  // namespace kvcache::server
