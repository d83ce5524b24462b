// Measures what HTTP costs: the first token of a cached prompt, and tokens of many streams at once, through
// the server and through the text service that it is made of. Answers are compared.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "bench_program.h"
#include "kvcache_engine/engine.h"
#include "server/server.h"

namespace kvcache::bench {
namespace {

using server::TextRequest;
using server::TextResult;
using server::TextService;
using Json = nlohmann::ordered_json;

struct Options : ProgramOptions {
  std::string model;
  int tokens = 8000;
  int streams = 64;
  int generated = 128;
};

// One streamed request.
class Stream {
 public:
  Stream(std::uint16_t port, const Json& body) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      Fail("no connection");
    }
    const std::string text = body.dump();
    request_ = StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                      "Content-Length: ", text.size(), "\r\n\r\n", text);
  }
  ~Stream() { (void)close(socket_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Send() const {
    std::string_view left = request_;
    while (!left.empty()) {
      const ssize_t sent = send(socket_, left.data(), left.size(), MSG_NOSIGNAL);
      if (sent <= 0) Fail("the server takes no request");
      left.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // Reads what there is. Returns false at the end.
  bool Read() {
    char bytes[65536];
    const ssize_t size = recv(socket_, bytes, sizeof(bytes), 0);
    if (size > 0) answer_.append(bytes, static_cast<std::size_t>(size));
    return size > 0;
  }
  bool HasText() const { return answer_.find("\"text\":\"") != std::string::npos; }
  int descriptor() const { return socket_; }

  std::string Text() const {
    std::string text;
    for (std::size_t at = answer_.find("data: {"); at != answer_.npos;
         at = answer_.find("data: {", at + 1)) {
      const auto event = Json::parse(answer_.substr(at + 6, answer_.find('\n', at) - at - 6));
      for (const auto& choice : event["choices"]) text += choice["text"].get<std::string>();
    }
    return text;
  }

 private:
  int socket_;
  std::string request_, answer_;
};

// Requests of the text service, and their end.
class Together {
 public:
  explicit Together(std::size_t count) : left_(count), texts_(count) {}

  TextRequest Make(std::size_t index, server::Prompt prompt, int tokens) {
    TextRequest request{.prompt = std::move(prompt), .max_tokens = tokens};
    request.sampling.temperature = 0.0f;
    request.on_text = [this, index](std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (first_ == 0.0) first_ = Seconds(Clock::kWall);
      texts_[index] += text;
      return true;
    };
    request.on_done = [this](const TextResult& result) {
      if (!result.status.ok()) Fail(result.status.message());
      const std::lock_guard lock(mutex_);
      --left_;
      done_.notify_one();
    };
    return request;
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
  }
  double first() const { return first_; }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t left_;
  double first_ = 0.0;
  std::vector<std::string> texts_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        engine_(Require(Engine::Open(
            options.model, {.threads = options.threads,
                            .context = options.tokens + 1024,
                            .max_sequences = options.streams,
                            .pool_tokens = options.streams * 1024 + 4 * options.tokens}))),
        server_(Require(server::Server::Start(*engine_, {.name = "model"}, {}))),
        lease_(server_->host().Loaded().front().lease) {}

  void Run() {
    if (options_.Wants("first token")) FirstToken();
    if (options_.Wants("streams")) Streams();
  }
  nlohmann::json TakeCases() { return std::move(cases_); }

 private:
  std::string LongText() const {
    std::string text;
    for (int i = 0; static_cast<int>(lease_->Encode(text)->tokens.size()) < options_.tokens; ++i) {
      for (int j = 0; j < 20; ++j) text += StrCat(" They saw ", (i * 20 + j) * 7 % 1000, " birds.");
    }
    return text;
  }

  Json Body(const std::string& prompt, int tokens) const {
    return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}, {"stream", true}};
  }

  void FirstToken() {
    const std::string text = LongText();
    std::vector<double> library, http;
    std::string expected;
    for (int round = 0; round <= options_.rounds; ++round) {
      Together one(1);
      double start = Seconds(Clock::kWall);
      server::Prompt prompt = Require(lease_->Encode(text));
      std::vector<TextRequest> requests;
      requests.push_back(one.Make(0, std::move(prompt), 2));
      (void)Require(lease_->Submit(std::move(requests)));
      one.Wait();
      if (round > 0) library.push_back(one.first() - start);
      Stream stream(server_->port(), Body(text, 2));
      start = Seconds(Clock::kWall);
      stream.Send();
      while (!stream.HasText() && stream.Read()) continue;
      if (round > 0) http.push_back(Seconds(Clock::kWall) - start);
      while (stream.Read()) continue;
      if (stream.Text() != one.texts()[0]) Fail("the answers differ");
    }
    const Timing in_library(library), through_http(http);
    std::printf("first token of %d cached tokens     library %7.2f ms, HTTP %7.2f ms: %+.2f ms\n",
                options_.tokens, in_library.median * 1e3, through_http.median * 1e3,
                (through_http.median - in_library.median) * 1e3);
    cases_.push_back({{"name", "first token"},
                      {"tokens", options_.tokens},
                      {"library_ms", in_library.median * 1e3},
                      {"http_ms", through_http.median * 1e3}});
  }

  std::string Prompt(int index) const {
    return StrCat("One day child number ", index, " went to the lake. ");
  }

  double ThroughLibrary(std::vector<std::string>& texts) {
    const auto count = static_cast<std::size_t>(options_.streams);
    Together all(count);
    std::vector<TextRequest> requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back(
          all.Make(i, Require(lease_->Encode(Prompt(static_cast<int>(i)))), options_.generated));
    }
    const double start = Seconds(Clock::kWall);
    (void)Require(lease_->Submit(std::move(requests)));
    all.Wait();
    const double seconds = Seconds(Clock::kWall) - start;
    texts = all.texts();
    return seconds;
  }

  double ThroughHttp(std::vector<std::string>& texts) {
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<pollfd> polls;
    for (int i = 0; i < options_.streams; ++i) {
      streams.push_back(
          std::make_unique<Stream>(server_->port(), Body(Prompt(i), options_.generated)));
      polls.push_back({.fd = streams.back()->descriptor(), .events = POLLIN, .revents = 0});
    }
    const double start = Seconds(Clock::kWall);
    for (const auto& stream : streams) stream->Send();
    std::size_t left = streams.size();
    while (left > 0) {
      if (poll(polls.data(), polls.size(), 10000) <= 0) Fail("a stream is silent");
      for (std::size_t i = 0; i < polls.size(); ++i) {
        if (polls[i].revents == 0 || streams[i]->Read()) continue;
        polls[i].fd = -1;
        --left;
      }
    }
    const double seconds = Seconds(Clock::kWall) - start;
    for (const auto& stream : streams) texts.push_back(stream->Text());
    return seconds;
  }

  void Streams() {
    std::vector<double> library, http;
    for (int round = 0; round <= options_.rounds; ++round) {
      std::vector<std::string> expected, texts;
      const double alone = ThroughLibrary(expected);
      const double served = ThroughHttp(texts);
      if (texts != expected) Fail("the answers differ");
      if (round == 0) continue;
      library.push_back(alone);
      http.push_back(served);
    }
    const Timing in_library(library), through_http(http);
    const double tokens = static_cast<double>(options_.streams) * options_.generated;
    const double each = (through_http.median - in_library.median) / tokens;
    std::printf(
        "%d streams of %d tokens              library %7.1f ms, HTTP %7.1f ms: %+.1f us a token\n",
        options_.streams, options_.generated, in_library.median * 1e3, through_http.median * 1e3,
        each * 1e6);
    cases_.push_back({{"name", "streams"},
                      {"streams", options_.streams},
                      {"tokens", tokens},
                      {"library_ms", in_library.median * 1e3},
                      {"http_ms", through_http.median * 1e3},
                      {"us_per_token", each * 1e6}});
  }

  const Options options_;
  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<server::Server> server_;
  const server::ModelLease lease_;
  nlohmann::json cases_ = nlohmann::json::array();
};

int Main(int argc, char** argv) {
  Options options;
  options.rounds = 9;
  options.threads = 1;
  options.model = std::string(KVCACHE_SOURCE_DIR) + "/models/story.gguf";
  CLI::App app("Compares requests through HTTP with the same in the library");
  AddOptions(app, options);
  app.add_option("--model", options.model, "the model");
  app.add_option("--tokens", options.tokens, "tokens of the cached prompt");
  app.add_option("--streams", options.streams, "streams at once");
  app.add_option("--generated", options.generated, "tokens of each");
  CLI11_PARSE(app, argc, argv);
  Bench bench(options);
  bench.Run();
  const bool written = WriteResult(options.json, {"server", MachineFacts(options.threads),
                                                  options.Settings(), bench.TakeCases()});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
