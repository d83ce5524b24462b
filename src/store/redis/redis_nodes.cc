#include "store/redis/redis_nodes.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/strings.h"

namespace kvcache::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSlots = 16384;
constexpr int kMaxPort = 65535;
constexpr std::size_t kMaxIdle = 4;  // connections that are kept for each node
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::seconds kLearnedFor{1};

}  // namespace

// CRC-16 with the polynomial 0x1021, of what is between the first braces if there is something, else of
// the whole key.
int RedisSlot(std::string_view key) {
  if (const std::size_t open = key.find('{'); open != std::string_view::npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  std::uint32_t crc = 0;
  for (const char letter : key) {
    crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(letter)) << 8;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 0x8000U) != 0 ? (crc << 1) ^ 0x1021U : crc << 1;
    }
    crc &= 0xFFFFU;
  }
  return static_cast<int>(crc % kSlots);
}

RedisNodes::RedisNodes(RedisUrl url, int max_pause_ms, Opener open)
    : url_(std::move(url)), max_pause_(max_pause_ms), open_(std::move(open)) {}

RedisNodes::Node& RedisNodes::Find(const RedisAddress& address) {
  Node node{.address = address, .pause = RetryPause(kFirstPause, max_pause_)};
  return nodes_.try_emplace(TextOf(address), std::move(node)).first->second;
}

Result<RedisNodes::Lease> RedisNodes::Take(const RedisAddress& address, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    Node& node = Find(address);
    const auto left = node.pause.Left(Clock::now());
    if (left > Clock::duration::zero()) {
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      return Status(StatusCode::kIo,
                    StrCat(TextOf(address), ": ", node.problem, "; tried again in ", ms, " ms"));
    }
    while (!node.idle.empty()) {
      Lease lease{address, std::move(node.idle.back())};
      node.idle.pop_back();
      if (!lease.connection->IsStale()) return lease;
    }
  }
  auto opened = open_(address, url_, deadline);
  if (!opened.ok()) {
    Failed(address, opened.status());
    return std::move(opened).TakeStatus().WithContext(TextOf(address));
  }
  return Lease{address, std::move(*opened)};
}

void RedisNodes::GiveBack(Lease lease) {
  const std::lock_guard lock(mutex_);
  Node& node = Find(lease.address);
  node.pause.Worked();
  if (node.idle.size() < kMaxIdle) node.idle.push_back(std::move(lease.connection));
}

void RedisNodes::Failed(const RedisAddress& address, const Status& why) {
  const std::lock_guard lock(mutex_);
  Node& node = Find(address);
  node.idle.clear();  // they lead to the same server
  node.pause.Failed(Clock::now());
  node.problem = why.message();
  for (RedisAddress& slot : slots_) {
    if (slot == address) slot = {};  // another node may have taken it over
  }
}

RedisAddress RedisNodes::NodeOf(int slot) {
  const std::lock_guard lock(mutex_);
  if (!slots_.empty() && !slots_[static_cast<std::size_t>(slot)].host.empty()) {
    return slots_[static_cast<std::size_t>(slot)];
  }
  const auto now = Clock::now();
  const auto works = [&](const Node& node) {
    return node.pause.Left(now) == Clock::duration::zero();
  };
  if (works(Find(url_.address))) return url_.address;
  for (const auto& [name, node] : nodes_) {
    if (works(node)) return node.address;
  }
  return url_.address;
}

// An answer of CLUSTER SLOTS: arrays of the first slot, the last one, and nodes, the master first, each
// an array of host, port and others.
void RedisNodes::LearnSlots(const redisReply& slots, const RedisAddress& from) {
  if (slots.type != REDIS_REPLY_ARRAY) return;
  for (std::size_t i = 0; i < slots.elements; ++i) {
    const redisReply& range = *slots.element[i];
    if (range.type != REDIS_REPLY_ARRAY || range.elements < 3) continue;
    const redisReply& master = *range.element[2];
    const bool is_whole = range.element[0]->type == REDIS_REPLY_INTEGER &&
                          range.element[1]->type == REDIS_REPLY_INTEGER &&
                          master.type == REDIS_REPLY_ARRAY && master.elements >= 2 &&
                          master.element[1]->type == REDIS_REPLY_INTEGER &&
                          master.element[1]->integer > 0 && master.element[1]->integer <= kMaxPort;
    if (!is_whole) continue;
    const std::string host(TextOf(*master.element[0]));
    const RedisAddress address{host.empty() ? from.host : host,
                               static_cast<int>(master.element[1]->integer)};
    if (!IsRedisHost(address.host)) continue;
    const auto first = std::max<std::int64_t>(0, range.element[0]->integer);
    const auto last = std::min<std::int64_t>(kSlots - 1, range.element[1]->integer);
    for (std::int64_t slot = first; slot <= last; ++slot) {
      slots_[static_cast<std::size_t>(slot)] = address;
    }
    (void)Find(address);
  }
}

void RedisNodes::Moved(int slot, const RedisAddress& where, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    slots_.resize(kSlots);
    slots_[static_cast<std::size_t>(slot)] = where;
    if (Clock::now() - learned_ < kLearnedFor) return;
    learned_ = Clock::now();
  }
  auto lease = Take(where, deadline);
  if (!lease.ok()) return;  // the next command says why
  const auto slots = lease->connection->Ask({"CLUSTER", "SLOTS"}, deadline);
  if (!slots.ok()) return Failed(where, slots.status());
  GiveBack(std::move(*lease));
  const std::lock_guard lock(mutex_);
  LearnSlots(**slots, where);
}

std::vector<RedisAddress> RedisNodes::All() {
  const std::lock_guard lock(mutex_);
  std::vector<RedisAddress> all;
  if (slots_.empty()) return {url_.address};
  for (const auto& [name, node] : nodes_) {
    const bool has_slots = std::find(slots_.begin(), slots_.end(), node.address) != slots_.end();
    if (has_slots) all.push_back(node.address);
  }
  return all;
}

}  // namespace kvcache::store
