// Compares the disk store, over LMDB, with a store of plain files (file_store.h): writing, reading with the
// page cache warm and cold, the space on disk after churn, the start with many objects, and two processes.
// Both verify each object on each read; each case checks what it read before it is reported.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench_program.h"
#include "kvcache/store.h"
#include "storage/file_store.h"
#include "store/content_hash.h"

namespace kvcache::bench {
namespace {

namespace fs = std::filesystem;

struct Options : ProgramOptions {
  std::string directory;
  std::int64_t bytes = std::int64_t{256} << 20;  // of the objects of a case
  std::int64_t objects = 100'000;                // of the large store
};

constexpr std::size_t kSizes[] = {std::size_t{256} << 10, std::size_t{1} << 20,
                                  std::size_t{16} << 20};

ObjectId IdOf(std::int64_t number) {
  ObjectId id;
  id.key = Require(store::StoreHashOf(std::as_bytes(std::span(&number, 1))));
  return id;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), folder_(options.directory) {
    if (!fs::create_directories(folder_)) {  // it is removed at the end
      Fail(folder_.string() + " exists; name a directory that does not");
    }
    payload_.resize(*std::max_element(std::begin(kSizes), std::end(kSizes)));
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i + 8 <= payload_.size(); i += 8) {
      const std::uint64_t value = random();
      std::memcpy(&payload_[i], &value, 8);
    }
    copy_.resize(payload_.size());
  }
  ~Bench() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void Run() {
    for (const std::size_t size : kSizes) {
      if (options_.Wants("write and read")) WriteAndRead(size);
    }
    if (options_.Wants("churn")) Churn();
    if (options_.Wants("processes")) Processes();
    if (options_.Wants("start")) Start();
  }
  nlohmann::json TakeCases() { return std::move(cases_); }

 private:
  enum class Kind : std::uint8_t { kLmdb, kFiles };
  static const char* NameOf(Kind kind) { return kind == Kind::kLmdb ? "LMDB" : "files"; }
  fs::path PathOf(Kind kind) const { return folder_ / NameOf(kind); }

  std::unique_ptr<Store> Open(Kind kind, std::int64_t budget,
                              FileStore::Sync sync = FileStore::Sync::kEach) const {
    if (kind == Kind::kFiles) return Require(FileStore::Open(PathOf(kind), budget, sync));
    return Require(OpenDiskStore({.directory = PathOf(kind), .budget_bytes = budget}));
  }

  // The number of an object is at its beginning.
  std::span<const std::byte> PayloadOf(std::int64_t number, std::size_t size) {
    std::memcpy(payload_.data(), &number, sizeof(number));
    return std::span(payload_).first(size);
  }
  void Read(Store& store, std::int64_t number, std::size_t size) {
    Require(store.Get(IdOf(number), [&](std::span<const std::byte> payload) {
      if (payload.size() != size) Fail("an object has another size");
      std::memcpy(copy_.data(), payload.data(), size);
      return Status::Ok();
    }));
    const auto expected = PayloadOf(number, size);
    if (std::memcmp(copy_.data(), expected.data(), size) != 0) Fail("an object has other bytes");
  }

  void DropPages(Kind kind) const {
    for (const auto& entry : fs::recursive_directory_iterator(PathOf(kind))) {
      if (!entry.is_regular_file()) continue;
      const int file = open(entry.path().c_str(), O_RDONLY);
      (void)fdatasync(file);
      (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      (void)close(file);
    }
  }

  std::int64_t BytesOnDisk(Kind kind) const {
    std::int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(PathOf(kind))) {
      struct stat info {};
      if (entry.is_regular_file() && stat(entry.path().c_str(), &info) == 0) {
        bytes += std::int64_t{info.st_blocks} * 512;
      }
    }
    return bytes;
  }

  // `key` is the value's name in the file of results: "rate" in GB/s, "median_ms", or "ratio".
  void Report(const std::string& what, Kind kind, const char* key, double value) {
    const std::string name = what + ", " + NameOf(kind);
    const std::string_view as = key;
    std::printf("%-48s %10.3f %s\n", name.c_str(), value,
                as == "rate"        ? "GB/s"
                : as == "median_ms" ? "ms"
                                    : "");
    (void)std::fflush(stdout);
    nlohmann::json result = {{"name", name}, {"kind", "disk_store"}, {key, value}};
    if (as == "rate") result.update({{"unit", "GB/s"}, {"rate_of", "median"}});
    cases_.push_back(std::move(result));
  }

  double ReadAll(Store& store, std::int64_t count, std::size_t size) {
    double seconds = 0.0;
    for (std::int64_t i = 0; i < count; ++i) {
      const ObjectId id = IdOf(i);
      const double start = Seconds(options_.clock);
      Require(store.Get(id, [&](std::span<const std::byte> payload) {
        std::memcpy(copy_.data(), payload.data(), payload.size());
        return Status::Ok();
      }));
      seconds += Seconds(options_.clock) - start;
      const auto expected = PayloadOf(i, size);
      if (std::memcmp(copy_.data(), expected.data(), size) != 0) Fail("an object has other bytes");
    }
    return seconds;
  }

  void WriteAndRead(std::size_t size) {
    const auto count = std::max<std::int64_t>(1, options_.bytes / static_cast<std::int64_t>(size));
    const double gigabytes = static_cast<double>(count) * static_cast<double>(size) * 1e-9;
    const std::string what = std::to_string(size >> 10) + " KiB";
    std::vector<double> written[2], warm[2], cold[2];
    for (int round = 0; round < options_.rounds; ++round) {
      for (const Kind kind : {Kind::kLmdb, Kind::kFiles}) {
        const auto at = static_cast<std::size_t>(kind);
        fs::remove_all(PathOf(kind));
        {
          const auto store = Open(kind, options_.bytes * 2);
          double seconds = 0.0;
          for (std::int64_t i = 0; i < count; ++i) {
            const auto payload = PayloadOf(i, size);
            const double start = Seconds(options_.clock);
            Require(store->Put(IdOf(i), payload));
            seconds += Seconds(options_.clock) - start;
          }
          written[at].push_back(gigabytes / seconds);
          (void)ReadAll(*store, count, size);
          warm[at].push_back(gigabytes / ReadAll(*store, count, size));
        }
        DropPages(kind);
        cold[at].push_back(gigabytes / ReadAll(*Open(kind, options_.bytes * 2), count, size));
      }
    }
    for (const Kind kind : {Kind::kLmdb, Kind::kFiles}) {
      const auto at = static_cast<std::size_t>(kind);
      Report("write " + what, kind, "rate", Median(written[at]));
      Report("read " + what + ", warm", kind, "rate", Median(warm[at]));
      Report("read " + what + ", cold", kind, "rate", Median(cold[at]));
    }
  }

  // Objects of many sizes go through a store of a quarter of their bytes.
  void Churn() {
    for (const Kind kind : {Kind::kLmdb, Kind::kFiles}) {
      fs::remove_all(PathOf(kind));
      const std::int64_t budget = options_.bytes / 2;
      const auto store = Open(kind, budget, FileStore::Sync::kNever);
      std::mt19937 random(7);
      std::int64_t number = 0;
      for (std::int64_t bytes = 0; bytes < 4 * budget; ++number) {
        const std::size_t size = 2000 + random() % (number % 4 == 0 ? 2'000'000 : 100'000);
        Require(store->Put(IdOf(number), PayloadOf(number, size)));
        bytes += static_cast<std::int64_t>(size);
      }
      const StoreStats stats = Require(store->Stats());
      const auto on_disk = static_cast<double>(BytesOnDisk(kind));
      Report("churn, bytes on disk for each stored byte", kind, "ratio",
             on_disk / static_cast<double>(stats.payload_bytes));
      Report("churn, stored share of the budget", kind, "ratio",
             static_cast<double>(stats.payload_bytes) / static_cast<double>(budget));
    }
  }

  // Two processes write different objects at once, and read what the other one has written.
  void Processes() {
    constexpr std::size_t kSize = std::size_t{1} << 20;
    const std::int64_t count = options_.bytes / static_cast<std::int64_t>(kSize) / 2;
    for (const Kind kind : {Kind::kLmdb, Kind::kFiles}) {
      fs::remove_all(PathOf(kind));
      (void)Open(kind, options_.bytes * 4);
      const double start = Seconds(options_.clock);
      pid_t children[2] = {};
      for (std::int64_t who = 0; who < 2; ++who) {
        children[who] = fork();
        if (children[who] != 0) continue;
        const auto store = Open(kind, options_.bytes * 4);
        for (std::int64_t i = 0; i < count; ++i) {
          Require(store->Put(IdOf(2 * i + who), PayloadOf(2 * i + who, kSize)));
        }
        _exit(0);
      }
      for (const pid_t child : children) {
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) Fail("a process failed");
      }
      const double seconds = Seconds(options_.clock) - start;
      const auto store = Open(kind, options_.bytes * 4);
      for (std::int64_t i = 0; i < 2 * count; ++i) Read(*store, i, kSize);
      Report("two processes write 1024 KiB", kind, "rate",
             static_cast<double>(2 * count) * kSize * 1e-9 / seconds);
    }
  }

  void Start() {
    constexpr std::size_t kSize = 1024;
    for (const Kind kind : {Kind::kLmdb, Kind::kFiles}) {
      fs::remove_all(PathOf(kind));
      {
        const auto store = Open(kind, std::int64_t{8} << 30, FileStore::Sync::kNever);
        for (std::int64_t i = 0; i < options_.objects; ++i) {
          Require(store->Put(IdOf(i), PayloadOf(i, kSize)));
        }
      }
      for (const bool is_cold : {false, true}) {
        std::vector<double> times;
        for (int round = 0; round < 5; ++round) {
          if (is_cold) DropPages(kind);
          const double start = Seconds(options_.clock);
          const auto store = Open(kind, std::int64_t{8} << 30);
          Read(*store, options_.objects / 2, kSize);
          times.push_back(Seconds(options_.clock) - start);
        }
        Report("start with " + std::to_string(options_.objects) + " objects, " +
                   (is_cold ? "cold" : "warm"),
               kind, "median_ms", Median(times) * 1e3);
      }
    }
  }

  Options options_;
  const fs::path folder_;
  std::vector<std::byte> payload_, copy_;
  nlohmann::json cases_ = nlohmann::json::array();
};

int Main(int argc, char** argv) {
  Options options;
  options.rounds = 5;
  options.directory = fs::temp_directory_path() / ("disk_store_bench." + std::to_string(getpid()));
  CLI::App app("Compares the disk store with a store of plain files");
  AddOptions(app, options);
  app.add_option("--bytes", options.bytes, "bytes of the objects of a case");
  app.add_option("--objects", options.objects, "objects of the large store");
  app.add_option("--directory", options.directory, "a new directory on the disk to measure");
  CLI11_PARSE(app, argc, argv);
  Bench bench(options);
  bench.Run();
  const bool written = WriteResult(options.json, {"disk_store", MachineFacts(options.threads),
                                                  options.Settings(), bench.TakeCases()});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  return kvcache::bench::Main(argc, argv);
}
