// Reads any bytes as HTTP requests, at once and in pieces: the same requests and the same refusal come
// out, and no limit is exceeded.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_input.h"
#include "server/http/http_request_reader.h"

namespace kvcache::server {
namespace {

using Outcome = HttpRequestReader::Outcome;

constexpr std::size_t kHeader = 1024;
constexpr std::size_t kBody = 2048;

std::string TextOf(HttpRequestReader& reader, Outcome outcome) {
  if (outcome == Outcome::kContinue) return "continue";
  if (outcome == Outcome::kRefused) {
    Check(reader.status() >= 400 && !reader.message().empty());
    return std::to_string(reader.status()) + reader.message();
  }
  const HttpRequest& request = reader.request();
  Check(request.method.size() + request.path.size() + request.host.size() <= kHeader + 4);
  Check(request.body.size() <= kBody);
  return request.method + "\n" + request.path + "\n" + request.host + "\n" + request.body;
}

std::vector<std::string> ReadAll(std::string_view bytes, std::size_t size) {
  HttpRequestReader reader(kHeader, kBody);
  std::vector<std::string> found;
  std::string inbox;
  while (!bytes.empty()) {
    inbox += bytes.substr(0, size);
    bytes.remove_prefix(std::min(size, bytes.size()));
    for (Outcome outcome; (outcome = reader.Read(inbox)) != Outcome::kMore;) {
      found.push_back(TextOf(reader, outcome));
      if (outcome == Outcome::kRefused) return found;
    }
  }
  return found;
}

}  // namespace
}  // namespace kvcache::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvcache::server::ReadAll;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> whole = ReadAll(bytes, size);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{500}}) {
    const std::vector<std::string> pieces = ReadAll(bytes, piece);
    // A refusal for size may come earlier or later; the requests before it are the same.
    const std::size_t same = std::min(whole.size(), pieces.size());
    for (std::size_t i = 0; i + 1 < same; ++i) kvcache::Check(whole[i] == pieces[i]);
  }
  return 0;
}
