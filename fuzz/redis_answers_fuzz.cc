// Lets a Redis server answer with any bytes: values that are cut, types that nobody asked for, redirections to
// anywhere, and any shape of CLUSTER SLOTS. No call may crash, wait, or give a payload that is not whole; each
// error is one line.
//
//   input   the number of operations, one byte for each, and then the answers of one connection after
//           another: two bytes of length, and bytes. "@" n is replaced by a whole object.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_input.h"
#include "kvcache/store.h"
#include "store/object_format.h"
#include "store/redis/redis_store.h"

namespace kvcache {
namespace {

constexpr int kIds = 3;
constexpr std::string_view kPayload = "a payload";

ObjectId IdOf(int number) {
  ObjectId id;
  id.key.bytes[0] = static_cast<std::byte>(number);
  return id;
}

std::string ObjectText(int number) {
  const auto payload = std::as_bytes(std::span(kPayload));
  const store::Envelope envelope = store::MakeEnvelope(IdOf(number), payload);
  std::string text = "$" + std::to_string(envelope.size() + payload.size()) + "\r\n";
  for (const std::byte byte : envelope) text += static_cast<char>(byte);
  return text + std::string(kPayload) + "\r\n";
}

// The far ends of connections. Each has sent all that it says when the connection is made.
class Servers {
 public:
  explicit Servers(std::string_view input) : input_(input) {}
  ~Servers() {
    for (const int end : ends_) (void)close(end);
  }
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  Result<std::unique_ptr<store::RedisConnection>> Connect(
      const store::RedisUrl& url, store::RedisConnection::Deadline deadline) {
    if (input_.empty()) return Status(StatusCode::kIo, "nobody is there");
    const std::string answers = NextAnswers();
    int ends[2];
    Check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ends_.push_back(ends[1]);
    // What does not fit into the socket's buffer is cut.
    (void)!write(ends[1], answers.data(), answers.size());
    Check(shutdown(ends[1], SHUT_WR) == 0);
    return store::RedisConnection::Over(ends[0], url, deadline);
  }

 private:
  std::string NextAnswers() {
    const std::size_t size = TakeByte(&input_) + std::size_t{256} * TakeByte(&input_);
    const std::string text = TakeText(&input_, size);
    std::string answers;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '@' && i + 1 < text.size()) {
        answers += ObjectText(static_cast<unsigned char>(text[++i]) % (kIds + 1));
      } else {
        answers += text[i];
      }
    }
    return answers;
  }

  std::string_view input_;
  std::vector<int> ends_;
};

void CheckError(const Status& status) {
  if (status.ok()) return;
  Check(!status.message().empty());
  Check(std::none_of(status.message().begin(), status.message().end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
}

Status CheckPayload(std::span<const std::byte> payload) {
  const auto expected = std::as_bytes(std::span(kPayload));
  Check(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
  return Status::Ok();
}

void Call(Store& store, unsigned operation) {
  const int number = static_cast<int>(operation / 8) % kIds;
  const ObjectId ids[kIds] = {IdOf(0), IdOf(1), IdOf(2)};
  switch (operation % 8) {
    case 0: return CheckError(store.Get(IdOf(number), CheckPayload));
    case 1:
      return CheckError(
          store.GetEach(ids, [](std::size_t /*index*/, std::span<const std::byte> payload,
                                StoreTier /*tier*/) { return CheckPayload(payload); }));
    case 2: return CheckError(store.Put(IdOf(number), std::as_bytes(std::span(kPayload))));
    case 3: return CheckError(store.Contains(IdOf(number)).status());
    case 4: return store.Touch(ids);
    case 5: return CheckError(store.Remove(IdOf(number)));
    case 6: {
      const auto all = store.List();
      CheckError(all.status());
      if (!all.ok()) return;
      for (const StoredObject& object : *all) {
        Check(object.payload_bytes >= 0 && object.last_used_s >= 0);
      }
      return;
    }
    default: {
      const auto stats = store.Stats();
      CheckError(stats.status());
      if (stats.ok()) Check(stats->payload_bytes >= 0 && stats->held_bytes >= 0);
    }
  }
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcache;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string operations = TakeText(&input, TakeByte(&input) % 8);
  Servers servers(input);
  auto store = store::OpenRedisStoreOver(
      {.url = "redis://cluster", .timeout_ms = 50, .max_pause_ms = 1},
      [&](const store::RedisAddress& /*address*/, const store::RedisUrl& url,
          store::RedisConnection::Deadline deadline) { return servers.Connect(url, deadline); });
  Check(store.ok());
  for (const char operation : operations) Call(**store, static_cast<unsigned char>(operation));
  return 0;
}
