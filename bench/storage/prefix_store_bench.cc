// Measures how soon a stored prompt is back: from disk, with the page cache warm and cold, beside plain
// reads of the same bytes from files; from Redis, beside plain GETs of the same values. Then generation with
// and without writing behind, and the start of a store that has many objects. Each restore is first compared
// with the bytes that were stored, and the first token with that of a cold run.
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench_program.h"
#include "engine/engine_impl.h"
#include "engine/persist/prefix_store.h"
#include "kvcache_engine/scheduler.h"
#include "store/content_hash.h"

namespace kvcache::bench {
namespace {

namespace fs = std::filesystem;

using Tokens = std::vector<std::int32_t>;

struct Options : ProgramOptions {
  std::string model;
  std::string directory;
  int tokens = 4096;
  int generated = 256;
  std::int64_t objects = 100'000;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), folder_(options.directory) {
    fs::create_directories(folder_);
    for (int i = 0; i < options.tokens; ++i) tokens_.push_back(3 + (i * 37 + i / 11) % 5000);
  }
  ~Bench() {
    if (redis_ > 0) {
      (void)kill(redis_, SIGKILL);
      (void)waitpid(redis_, nullptr, 0);
    }
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void Run() {
    if (options_.Wants("disk") || options_.Wants("redis")) Fill();
    if (options_.Wants("disk")) Disk(false);
    if (options_.Wants("disk")) Disk(true);
    if (options_.Wants("redis") && StartRedis()) Redis();
    if (options_.Wants("generation")) Generation();
    if (options_.Wants("objects")) ManyObjects();
  }
  nlohmann::json TakeCases() { return std::move(cases_); }

 private:
  std::unique_ptr<Engine> Open(std::shared_ptr<Store> store) {
    auto engine = Require(Engine::Open(
        options_.model,
        {.threads = options_.threads, .context = options_.tokens + options_.generated + 64}));
    if (store != nullptr) Require(engine->UseStore(std::move(store)));
    return engine;
  }
  std::string StorePath() const { return folder_ / "store"; }
  std::shared_ptr<Store> OpenDisk() {
    return Require(
        OpenDiskStore({.directory = StorePath(), .budget_bytes = std::int64_t{4} << 30}));
  }
  std::string FileOf(std::size_t i) const { return folder_ / ("plain." + std::to_string(i)); }

  // Evaluates the prompt once. Its objects go to the store, and to files.
  void Fill() {
    const auto engine = Open(OpenDisk());
    Evaluate(*engine);
    logits_ = last_logits_;
    (void)engine->FlushStore();
    const auto keys = engine->prefix_store()->keys();
    for (const StoredPiece& piece :
         Require(keys.Divide(tokens_, PrefixKeys::kMinPiece, Require(keys.Nothing(0)),
                             [](const ObjectId&) { return true; }))) {
      ids_.push_back(piece.id);
    }
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      Require(engine->prefix_store()->store().Get(ids_[i], [&](std::span<const std::byte> payload) {
        sizes_.push_back(payload.size());
        bytes_ += payload.size();
        const int file = open(FileOf(i).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
        if (write(file, payload.data(), payload.size()) != std::ssize(payload))
          Fail("cannot write");
        (void)fsync(file);
        (void)close(file);
        return Status::Ok();
      }));
    }
    buffer_.resize(bytes_);
    std::printf("%d tokens in %zu objects of %.1f MiB\n", options_.tokens, ids_.size(),
                static_cast<double>(bytes_) / (1 << 20));
  }

  // Answers a prompt with `count` tokens. Returns what the request reports.
  RequestResult Answer(Engine& engine, const Tokens& prompt, int count) {
    const auto scheduler = Require(Scheduler::Make(engine, {.one_at_a_time = true}));
    ScheduledRequest request{
        .prompt = prompt, .sampling = {.temperature = 0.0f}, .max_tokens = count};
    RequestResult ended;
    request.on_logits = [&](Position length, std::span<const float> logits) {
      if (length != std::ssize(prompt)) return;
      last_logits_.assign(logits.begin(), logits.end());
    };
    request.on_done = [&](const RequestResult& result) { ended = result; };
    Require(scheduler->Submit(std::move(request)).status());
    while (Require(scheduler->Step())) {
    }
    Require(ended.status);
    return ended;
  }
  void Evaluate(Engine& engine) { (void)Answer(engine, tokens_, 0); }

  // Drops clean pages of all files here from the page cache.
  void DropPages() {
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      const int file = open(entry.path().c_str(), O_RDONLY);
      (void)fdatasync(file);
      (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      (void)close(file);
    }
  }

  double ReadFiles() {
    const double start = Seconds(options_.clock);
    std::size_t at = 0;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const int file = open(FileOf(i).c_str(), O_RDONLY);
      for (std::size_t done = 0; done < sizes_[i];) {
        const ssize_t count = read(file, buffer_.data() + at + done, sizes_[i] - done);
        if (count <= 0) Fail("cannot read");
        done += static_cast<std::size_t>(count);
      }
      (void)close(file);
      at += sizes_[i];
    }
    return Seconds(options_.clock) - start;
  }

  double ReadStore(Store& store) {
    const double start = Seconds(options_.clock);
    std::size_t at = 0;
    Require(store.GetEach(ids_, [&](std::size_t, std::span<const std::byte> payload, StoreTier) {
      std::memcpy(buffer_.data() + at, payload.data(), payload.size());
      at += payload.size();
      return Status::Ok();
    }));
    const double time = Seconds(options_.clock) - start;
    if (at != bytes_) Fail("the store has other bytes");
    return time;
  }

  double Restore(Engine& engine) {
    const ReuseReport reuse = Answer(engine, tokens_, 0).reuse;
    if (reuse.stored < options_.tokens - 16) Fail("the prompt was not restored");
    return reuse.store_ms / 1e3;
  }

  void Report(const std::string& name, const std::vector<double>& times,
              const std::vector<double>& plain) {
    const double gigabytes = static_cast<double>(bytes_) * 1e-9;
    const double share = Median(plain) / Median(times);
    std::printf("%-34s %8.1f ms  %6.2f GB/s  plain %6.2f GB/s  %5.0f%%\n", name.c_str(),
                Median(times) * 1e3, gigabytes / Median(times), gigabytes / Median(plain),
                share * 100);
    (void)std::fflush(stdout);
    cases_.push_back({{"name", name},
                      {"kind", "restore"},
                      {"tokens", options_.tokens},
                      {"bytes", bytes_},
                      {"median_ms", Median(times) * 1e3},
                      {"rate", gigabytes / Median(times)},
                      {"unit", "GB/s"},
                      {"rate_of", "median"},
                      {"limit", gigabytes / Median(plain)},
                      {"share", share}});
  }

  void Disk(bool is_cold) {
    std::vector<double> plain, read, restored;
    const int rounds = is_cold ? std::min(options_.rounds, 5) : options_.rounds;
    const auto engine = Open(OpenDisk());
    (void)Restore(*engine);
    Require(engine->UseStore(Require(MakeMemoryStore())));
    for (int round = 0; round < rounds; ++round) {
      if (is_cold) DropPages();
      plain.push_back(ReadFiles());
      {
        if (is_cold) DropPages();
        const auto store = OpenDisk();
        if (!is_cold) (void)ReadStore(*store);  // pages are mapped
        read.push_back(ReadStore(*store));
      }
      // The cells were used before. Pages of a mapping stay, so that no store is open meanwhile.
      if (is_cold) {
        Require(engine->UseStore(Require(MakeMemoryStore())));
        DropPages();
      }
      Require(engine->UseStore(OpenDisk()));
      if (!is_cold) (void)Restore(*engine);
      restored.push_back(Restore(*engine));
      Require(engine->UseStore(Require(MakeMemoryStore())));
    }
    const std::string state = is_cold ? ", cold" : ", warm";
    Report("disk, verified" + state, read, plain);
    Report("disk, to the cache" + state, restored, plain);
    Require(engine->UseStore(OpenDisk()));
    Evaluate(*engine);
    if (last_logits_ != logits_) Fail("a restored prompt has other logits");
  }

  bool StartRedis() {
    port_ = 20000 + getpid() % 20000;
    const std::string port = std::to_string(port_);
    redis_ = fork();
    if (redis_ == 0) {
      execlp("redis-server", "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1",
             "--save", "", "--loglevel", "warning", "--dir", folder_.c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 200; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      redisContext* const context = redisConnect("127.0.0.1", port_);
      const bool is_up = context != nullptr && context->err == 0;
      if (context != nullptr) redisFree(context);
      if (is_up) return true;
    }
    (void)std::fprintf(stderr, "redis-server is missing: its cases are left out\n");
    return false;
  }

  // One GET after the other, through hiredis' own calls.
  double PlainGets() {
    redisContext* const context = redisConnect("127.0.0.1", port_);
    const double start = Seconds(options_.clock);
    std::size_t at = 0;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const std::string key =
          "kvcache:" + store::HexText(ids_[i].fingerprint) + ":" + store::HexText(ids_[i].key);
      auto* const reply =
          static_cast<redisReply*>(redisCommand(context, "GET %b", key.data(), key.size()));
      if (reply == nullptr || reply->type != REDIS_REPLY_STRING) Fail("Redis lacks a value");
      std::memcpy(buffer_.data() + at, reply->str + 128, sizes_[i]);
      at += sizes_[i];
      freeReplyObject(reply);
    }
    const double time = Seconds(options_.clock) - start;
    redisFree(context);
    return time;
  }

  void Redis() {
    const std::string url = "redis://127.0.0.1:" + std::to_string(port_);
    const std::shared_ptr<Store> store = Require(OpenRedisStore({.url = url, .timeout_ms = 20000}));
    {
      const auto disk = OpenDisk();
      for (const StoredObject& object : Require(disk->List())) {
        Require(disk->Get(object.id, [&](std::span<const std::byte> payload) {
          return store->Put(object.id, payload);
        }));
      }
    }
    const auto engine = Open(store);
    (void)Restore(*engine);
    std::vector<double> plain, read, restored;
    for (int round = 0; round < options_.rounds; ++round) {
      plain.push_back(PlainGets());
      read.push_back(ReadStore(*store));
      restored.push_back(Restore(*engine));
    }
    Report("Redis, verified", read, plain);
    Report("Redis, to the cache", restored, plain);
    Evaluate(*engine);
    if (last_logits_ != logits_) Fail("a restored prompt has other logits");
  }

  // A prompt of another text, and tokens after it, in turns with and without a store.
  double Generate(Engine& engine, int first) {
    Tokens prompt;
    for (int i = 0; i < 512; ++i) prompt.push_back(3 + (i * 41 + first) % 5000);
    const RequestResult result = Answer(engine, prompt, options_.generated);
    return (result.total_ms - result.first_token_ms) / 1e3;
  }

  void Generation() {
    const auto off = Open(nullptr);
    const auto on = Open(OpenDisk());
    std::vector<double> with, without;
    for (int round = 0; round < std::min(options_.rounds, 7); ++round) {
      without.push_back(Generate(*off, 1000 + round));
      with.push_back(Generate(*on, 1000 + round));
    }
    const double share = Median(without) / Median(with);
    const double rate = options_.generated / Median(with);
    std::printf("%-34s %8.2f tokens/s  without %8.2f  %5.1f%%\n", "generation, writing behind",
                rate, options_.generated / Median(without), share * 100);
    cases_.push_back({{"name", "generation, writing behind"},
                      {"kind", "generation"},
                      {"tokens", options_.generated},
                      {"rate", rate},
                      {"unit", "tokens/s"},
                      {"rate_of", "median"},
                      {"limit", options_.generated / Median(without)},
                      {"share", share}});
  }

  void ManyObjects() {
    const std::string path = folder_ / "many";
    const DiskStoreOptions options{.directory = path, .budget_bytes = std::int64_t{8} << 30};
    const std::vector<std::byte> payload(1024);
    ObjectId id;
    const auto name = [&](std::int64_t i) {
      id.key = Require(store::StoreHashOf(std::as_bytes(std::span(&i, 1))));
    };
    {
      const auto store = Require(OpenDiskStore(options));
      for (std::int64_t i = 0; i < options_.objects; ++i) {
        name(i);
        Require(store->Put(id, payload));
      }
    }
    std::vector<double> times;
    for (int round = 0; round < 5; ++round) {
      const double start = Seconds(options_.clock);
      const auto store = Require(OpenDiskStore(options));
      name(options_.objects / 2);
      Require(store->Get(id, [](std::span<const std::byte>) { return Status::Ok(); }));
      times.push_back(Seconds(options_.clock) - start);
    }
    const auto objects = static_cast<long long>(options_.objects);
    std::printf("%-34s %8.1f ms  with %lld objects\n", "opening, and the first object",
                Median(times) * 1e3, objects);
    cases_.push_back({{"name", "opening, and the first object"},
                      {"kind", "open"},
                      {"objects", objects},
                      {"median_ms", Median(times) * 1e3}});
  }

  Options options_;
  const fs::path folder_;
  Tokens tokens_;
  std::vector<float> logits_, last_logits_;
  std::vector<ObjectId> ids_;
  std::vector<std::size_t> sizes_;
  std::size_t bytes_ = 0;
  std::vector<std::byte> buffer_;
  pid_t redis_ = -1;
  int port_ = 0;
  nlohmann::json cases_ = nlohmann::json::array();
};

int Main(int argc, char** argv) {
  Options options;
  options.rounds = 7;
  options.directory =
      (fs::temp_directory_path() / ("prefix_store_bench." + std::to_string(getpid())));
  CLI::App app("Compares restoring stored prompts with plain reads of the same bytes");
  AddOptions(app, options);
  app.add_option("--model", options.model, "the model, whose layers keep every token")->required();
  app.add_option("--tokens", options.tokens, "tokens of the prompt");
  app.add_option("--generated", options.generated, "tokens of an answer");
  app.add_option("--objects", options.objects, "objects of the large store");
  app.add_option("--directory", options.directory, "a new directory on the disk to measure");
  CLI11_PARSE(app, argc, argv);
  Bench bench(options);
  bench.Run();
  const bool written = WriteResult(options.json, {"prefix_store", MachineFacts(options.threads),
                                                  options.Settings(), bench.TakeCases()});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
