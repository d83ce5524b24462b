// A store in Redis. A value is an object with its envelope, under "kvcache:" and the fingerprint and the
// key in hexadecimal. So a value that was cut or exchanged is found out on every read.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <deque>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/store.h"
#include "platform/wall_clock.h"
#include "store/content_hash.h"
#include "store/object_format.h"
#include "store/redis/redis_nodes.h"
#include "store/redis/redis_store.h"

namespace kvcache::store {
namespace {

constexpr std::string_view kPrefix = "kvcache:";
constexpr std::size_t kMaxRedisBytes = std::size_t{512} << 20;  // Redis' default limit
constexpr std::size_t kMaxAhead = 4;                            // values that are asked for at once
constexpr int kMaxRedirections = 5;
constexpr std::int64_t kMaxMemoryBytes = std::int64_t{1}
                                         << 48;  // of one server, as far as is believed

using Deadline = RedisConnection::Deadline;

std::string KeyText(const ObjectId& id) {
  return StrCat(kPrefix, HexText(id.fingerprint), ":", HexText(id.key));
}

bool ParseHash(std::string_view text, StoreHash& hash) {
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) {
    const char* const digits = text.data() + 2 * i;
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
    if (error != std::errc() || end != digits + 2) return false;
    hash.bytes[i] = static_cast<std::byte>(byte);
  }
  return true;
}

// Reads what KeyText wrote, and nothing else.
bool ParseKey(std::string_view text, ObjectId& id) {
  constexpr std::size_t kDigits = 64;
  const std::string_view hashes = text.substr(std::min(text.size(), kPrefix.size()));
  return hashes.size() == 2 * kDigits + 1 && hashes[kDigits] == ':' &&
         ParseHash(hashes.substr(0, kDigits), id.fingerprint) &&
         ParseHash(hashes.substr(kDigits + 1), id.key) && KeyText(id) == text;
}

// A number of the server in [0, most]; nothing else makes sense.
std::int64_t NumberIn(std::int64_t number, std::int64_t max) {
  return std::clamp<std::int64_t>(number, 0, max);
}

Status SaidBy(const RedisAddress& address, const redisReply& reply) {
  const std::string_view text = TextOf(reply);
  return {text.starts_with("OOM ") ? StatusCode::kCacheFull : StatusCode::kIo,
          StrCat(TextOf(address), " says: ", OneLine(text))};
}

class RedisStore final : public Store {
 public:
  RedisStore(RedisUrl url, const RedisStoreOptions& options, RedisNodes::Opener open,
             const RedisListLimits& limits)
      : name_(url.Name()),
        options_(options),
        limits_(limits),
        nodes_(std::move(url), options.max_pause_ms, std::move(open)) {}

  Status Get(const ObjectId& id, const Reader& reader) override {
    const std::string key = KeyText(id);
    KVCACHE_ASSIGN_OR_RETURN(const RedisReply reply, AskAbout(key, {"GET", key}, Soon()));
    return Read(id, *reply, reader);
  }

  // Several values are under way at once: while one is read here, the server sends the next.
  Status GetEach(std::span<const ObjectId> ids, const EachReader& reader) override {
    Leases leases(nodes_);
    std::deque<RedisAddress> asked;
    Status status;
    for (std::size_t i = 0, next = 0; i < ids.size() && status.ok(); ++i) {
      for (; next < ids.size() && next < i + kMaxAhead && status.ok(); ++next) {
        const std::string key = KeyText(ids[next]);
        asked.push_back(nodes_.NodeOf(RedisSlot(key)));
        status = Named(leases.Send(asked.back(), {"GET", key}, Soon()));
      }
      if (!status.ok()) break;
      auto reply = leases.Receive(asked.front(), Soon());
      asked.pop_front();
      if (!reply.ok()) {
        status = Named(std::move(reply).TakeStatus());
        break;
      }
      const auto read = [&](std::span<const std::byte> payload) {
        return reader(i, payload, StoreTier::kRemote);
      };
      // Redirections and errors take the way of a single command.
      status =
          (*reply)->type == REDIS_REPLY_ERROR ? Get(ids[i], read) : Read(ids[i], **reply, read);
    }
    leases.End(asked.empty());
    return status;
  }

  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    if (payload.size() + kEnvelopeBytes > kMaxRedisBytes) {
      return CacheFull(
          StrCat(name_, ": an object of ", payload.size(), " bytes is larger than a value"));
    }
    const Envelope envelope = MakeEnvelope(id, payload);
    const std::span<const std::byte> parts[] = {envelope, payload};
    const std::string key = KeyText(id);
    const std::string ttl = StrCat(options_.ttl_s);
    auto reply = options_.ttl_s > 0 ? AskAbout(key, {"SETEX", key, ttl}, Soon(), parts)
                                    : AskAbout(key, {"SET", key}, Soon(), parts);
    return reply.ok() ? Status::Ok() : std::move(reply).TakeStatus();
  }

  Result<bool> Contains(const ObjectId& id) override {
    const std::string key = KeyText(id);
    KVCACHE_ASSIGN_OR_RETURN(const RedisReply reply, AskAbout(key, {"EXISTS", key}, Soon()));
    return reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;
  }

  // Begins their time to live again. One round trip, whatever their number.
  void Touch(std::span<const ObjectId> ids) override {
    if (options_.ttl_s <= 0) return;
    const std::string ttl = StrCat(options_.ttl_s);
    const Deadline deadline = Soon();
    Leases leases(nodes_);
    std::vector<RedisAddress> asked;
    Status status;
    for (const ObjectId& id : ids) {
      const std::string key = KeyText(id);
      asked.push_back(nodes_.NodeOf(RedisSlot(key)));
      status = leases.Send(asked.back(), {"EXPIRE", key, ttl}, deadline);
      if (!status.ok()) break;
    }
    for (std::size_t i = 0; i < asked.size() && status.ok(); ++i) {
      status = leases.Receive(asked[i], deadline).status();
    }
    leases.End(status.ok());
  }

  Status Remove(const ObjectId& id) override {
    const std::string key = KeyText(id);
    auto reply = AskAbout(key, {"UNLINK", key}, Soon());
    return reply.ok() ? Status::Ok() : std::move(reply).TakeStatus();
  }

  Result<std::vector<StoredObject>> List() override {
    // A node of a cluster tells of the others when it is asked for a key that it does not have.
    for (int i = 0; i < 4; ++i) {
      ObjectId id;
      id.key.bytes[0] = static_cast<std::byte>(i);
      (void)Contains(id).ok();
    }
    std::vector<StoredObject> all;
    for (const RedisAddress& address : nodes_.All()) {
      KVCACHE_RETURN_IF_ERROR(Named(ListNode(address, all)));
    }
    std::sort(all.begin(), all.end(), [](const StoredObject& a, const StoredObject& b) {
      return a.last_used_s == b.last_used_s ? a.id < b.id : a.last_used_s < b.last_used_s;
    });
    return all;
  }

  Result<StoreStats> Usage() override {
    StoreStats stats{.damaged = damaged_};
    for (const RedisAddress& address : nodes_.All()) {
      KVCACHE_RETURN_IF_ERROR(Named(AddMemory(address, stats)));
    }
    return stats;
  }

  StoreTier tier() const override { return StoreTier::kRemote; }

 private:
  // The connections of one call to several nodes.
  class Leases {
   public:
    explicit Leases(RedisNodes& nodes) : nodes_(nodes) {}

    Status Send(const RedisAddress& address, std::initializer_list<std::string_view> arguments,
                Deadline deadline) {
      const std::string name = TextOf(address);
      if (!leases_.contains(name)) {
        KVCACHE_ASSIGN_OR_RETURN(auto lease, nodes_.Take(address, deadline));
        leases_.emplace(name, std::move(lease));
      }
      return Check(address, leases_.at(name).connection->Send(arguments, deadline));
    }
    Result<RedisReply> Receive(const RedisAddress& address, Deadline deadline) {
      auto reply = leases_.at(TextOf(address)).connection->Receive(deadline);
      if (!reply.ok()) return Check(address, std::move(reply).TakeStatus());
      return reply;
    }
    // Keeps the connections, if all answers were read.
    void End(bool are_read) {
      for (auto& [name, lease] : leases_) {
        if (are_read && !has_failed_) nodes_.GiveBack(std::move(lease));
      }
      leases_.clear();
    }

   private:
    Status Check(const RedisAddress& address, Status status) {
      if (status.ok()) return status;
      has_failed_ = true;
      nodes_.Failed(address, status);
      return std::move(status).WithContext(TextOf(address));
    }

    RedisNodes& nodes_;
    std::map<std::string, RedisNodes::Lease> leases_;
    bool has_failed_ = false;
  };

  Deadline Soon() const {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms);
  }
  Status Named(Status status) const {
    const bool is_ours = status.code() == StatusCode::kIo;
    return is_ours ? std::move(status).WithContext("redis") : status;
  }

  // Sends a command to the node that has the key, and follows redirections. Errors: kIo; kCacheFull if
  // the server has no memory.
  Result<RedisReply> AskAbout(std::string_view key,
                              std::initializer_list<std::string_view> arguments, Deadline deadline,
                              std::span<const std::span<const std::byte>> parts = {}) {
    const int slot = RedisSlot(key);
    RedisAddress address = nodes_.NodeOf(slot);
    bool is_asking = false;
    for (int hop = 0; hop <= kMaxRedirections; ++hop) {
      auto answer = AskNode(address, is_asking, arguments, deadline, parts);
      if (!answer.ok()) return Named(std::move(answer).TakeStatus());
      if ((*answer)->type != REDIS_REPLY_ERROR) return answer;
      const std::string_view text = TextOf(**answer);
      is_asking = text.starts_with("ASK ");
      if (!is_asking && !text.starts_with("MOVED ")) return Named(SaidBy(address, **answer));
      // "MOVED 3999 host:port": without a host it is the one that answered.
      const std::string_view where = text.substr(text.rfind(' ') + 1);
      auto next =
          ParseRedisAddress(where.starts_with(':') ? StrCat("same", where) : std::string(where));
      if (next.ok() && where.starts_with(':')) next->host = address.host;
      if (!next.ok()) return Named(SaidBy(address, **answer));
      if (!is_asking) nodes_.Moved(slot, *next, deadline);
      address = *next;
    }
    return Named({StatusCode::kIo, "the nodes of the cluster disagree about who has a key"});
  }

  Result<RedisReply> AskNode(const RedisAddress& address, bool is_asking,
                             std::initializer_list<std::string_view> arguments, Deadline deadline,
                             std::span<const std::span<const std::byte>> parts) {
    KVCACHE_ASSIGN_OR_RETURN(RedisNodes::Lease lease, nodes_.Take(address, deadline));
    const auto ask = [&]() -> Result<RedisReply> {
      RedisConnection& connection = *lease.connection;
      if (is_asking) KVCACHE_RETURN_IF_ERROR(connection.Send({"ASKING"}, deadline));
      KVCACHE_RETURN_IF_ERROR(
          connection.Send(std::span(arguments.begin(), arguments.size()), parts, deadline));
      if (is_asking) {
        KVCACHE_ASSIGN_OR_RETURN(const RedisReply ignored, connection.Receive(deadline));
      }
      return connection.Receive(deadline);
    };
    auto reply = ask();
    if (!reply.ok()) {
      nodes_.Failed(address, reply.status());
      return std::move(reply).TakeStatus().WithContext(TextOf(address));
    }
    nodes_.GiveBack(std::move(lease));
    return reply;
  }

  Status Read(const ObjectId& id, const redisReply& reply, const Reader& reader) {
    if (reply.type != REDIS_REPLY_STRING) {
      return NotFound("the store has no such object");
    }
    const std::string_view text = TextOf(reply);
    const auto payload = OpenEnvelope(id, std::as_bytes(std::span(text.data(), text.size())));
    if (payload.ok()) return reader(*payload);
    ++damaged_;
    (void)Remove(id).ok();
    return payload.status();
  }

  // Ends the list of a server that never gives the last cursor.
  Status CheckList(int rounds, std::size_t objects) const {
    if (rounds >= limits_.rounds) {
      return {StatusCode::kIo, StrCat("SCAN does not end after ", rounds,
                                      " answers; must end with ", limits_.rounds, " at most")};
    }
    if (objects > limits_.objects) {
      return {StatusCode::kIo, StrCat("SCAN does not end after ", objects,
                                      " objects; must end with ", limits_.objects, " at most")};
    }
    return Status::Ok();
  }

  Status ListNode(const RedisAddress& address, std::vector<StoredObject>& all) {
    const std::int64_t now = WallClockSeconds();
    std::string cursor = "0";
    int rounds = 0;
    do {
      KVCACHE_RETURN_IF_ERROR(CheckList(rounds++, all.size()).WithContext(TextOf(address)));
      KVCACHE_ASSIGN_OR_RETURN(
          const RedisReply found,
          AskNode(address, false, {"SCAN", cursor, "MATCH", "kvcache:*", "COUNT", "1000"}, Soon(),
                  {}));
      if (found->type != REDIS_REPLY_ARRAY || found->elements != 2) return SaidBy(address, *found);
      cursor = TextOf(*found->element[0]);
      const redisReply& keys = *found->element[1];
      const Deadline deadline = Soon();
      Leases leases(nodes_);
      for (std::size_t i = 0; i < keys.elements; ++i) {
        const std::string_view key = TextOf(*keys.element[i]);
        KVCACHE_RETURN_IF_ERROR(leases.Send(address, {"STRLEN", key}, deadline));
        KVCACHE_RETURN_IF_ERROR(leases.Send(address, {"OBJECT", "IDLETIME", key}, deadline));
      }
      for (std::size_t i = 0; i < keys.elements; ++i) {
        KVCACHE_ASSIGN_OR_RETURN(const RedisReply size, leases.Receive(address, deadline));
        KVCACHE_ASSIGN_OR_RETURN(const RedisReply idle, leases.Receive(address, deadline));
        StoredObject object;
        const bool is_there = size->type == REDIS_REPLY_INTEGER &&
                              size->integer >= static_cast<long long>(kEnvelopeBytes) &&
                              size->integer <= static_cast<long long>(kMaxRedisBytes);
        if (!is_there || !ParseKey(TextOf(*keys.element[i]), object.id)) continue;
        object.payload_bytes = size->integer - static_cast<std::int64_t>(kEnvelopeBytes);
        object.last_used_s =
            idle->type == REDIS_REPLY_INTEGER ? now - NumberIn(idle->integer, now) : now;
        all.push_back(object);
      }
      leases.End(true);
    } while (cursor != "0");
    return Status::Ok();
  }

  // The memory that the server takes, and its limit.
  Status AddMemory(const RedisAddress& address, StoreStats& stats) {
    KVCACHE_ASSIGN_OR_RETURN(const RedisReply info,
                             AskNode(address, false, {"INFO", "memory"}, Soon(), {}));
    const std::string text(TextOf(*info));
    const auto number = [&](const std::string& name) -> std::int64_t {
      const std::size_t at = text.find("\n" + name + ":");
      std::int64_t value = 0;
      if (at == std::string::npos) return value;
      (void)std::from_chars(text.data() + at + name.size() + 2, text.data() + text.size(), value);
      return NumberIn(value, kMaxMemoryBytes);
    };
    stats.held_bytes += number("used_memory");
    stats.budget_bytes += number("maxmemory");
    return Status::Ok();
  }

  const std::string name_;
  const RedisStoreOptions options_;
  const RedisListLimits limits_;
  RedisNodes nodes_;
  std::atomic<std::int64_t> damaged_{0};
};

}  // namespace

Result<std::unique_ptr<Store>> OpenRedisStoreOver(const RedisStoreOptions& options,
                                                  RedisNodes::Opener open,
                                                  const RedisListLimits& limits) {
  KVCACHE_ASSIGN_OR_RETURN(RedisUrl url, ParseRedisUrl(options.url));
  if (options.timeout_ms < 1 || options.max_pause_ms < 1 || options.ttl_s < 0) {
    return InvalidArgument(StrCat("a Redis store has a time-out of ", options.timeout_ms,
                                  " ms, a pause of up to ", options.max_pause_ms,
                                  " ms and a time to live of ", options.ttl_s,
                                  " s; the first two must be at least 1, the last one at least 0"));
  }
  return std::unique_ptr<Store>(
      std::make_unique<RedisStore>(std::move(url), options, std::move(open), limits));
}

}  // namespace kvcache::store

namespace kvcache {

Result<std::unique_ptr<Store>> OpenRedisStore(const RedisStoreOptions& options) {
  return store::OpenRedisStoreOver(options, &store::RedisConnection::Open);
}

}  // namespace kvcache
