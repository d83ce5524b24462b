// Measures snapshots of a causal cache, and transactions.
//
//   snapshot_bench [--threads=N] [--rounds=N] [--json=FILE]
//
// 1. Lazy snapshots: the time to take, split, merge and restore one of 1,000 to 1,000,000 tokens.
//    It must not grow with them.
// 2. Bytes: materialising, importing, restoring and exporting 8,000 tokens of a 1B-class shape (16
//    layers, 8 heads of 64) in each cache type, against a plain copy of as many bytes by as many
//    threads. The plain copy and the pages of snapshots both take new memory from the system, or
//    both take memory that was used before. Every restored sequence and every imported snapshot is
//    compared byte by byte, by its export.
// 3. Transactions: the time of Begin and Commit around the metadata of a pass, per sequence, and of
//    a rollback of eight tokens behind histories of 1,000 to 1,000,000.
//
// Prints tables. Nothing is random, so there is no seed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/strings.h"
#include "bench_program.h"
#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/transaction.h"
#include "platform/aligned_buffer.h"
#include "platform/thread_pool.h"

namespace kvcache {
namespace {

using bench::Fail;
using bench::Require;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};

template <class Call>
double Seconds(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The measurements as cases of the file of results.
nlohmann::json cases =
    nlohmann::json::array();  // NOLINT(cert-err58-cpp): a program ends without it
void Record(const std::string& name, std::vector<double> seconds, double bytes = 0,
            double plain_seconds = 0) {
  const bench::Timing timing(std::move(seconds));
  nlohmann::json entry = timing.Json();
  entry.update({{"name", name}});
  if (bytes > 0) {
    entry.update({{"rate", bytes / timing.median / 1e9},
                  {"unit", "GB/s"},
                  {"rate_of", "median"},
                  {"limit", bytes / plain_seconds / 1e9},
                  {"share", plain_seconds / timing.median}});
  }
  cases.push_back(std::move(entry));
}

// Evaluates `tokens` positions of the first sequence, with `layers` layers of 8 heads of 64.
void Fill(Cache& cache, Position tokens, int layers, int max_batch) {
  constexpr int kHeads = 8;
  constexpr int kDim = 64;
  std::vector<float> row(static_cast<std::size_t>(max_batch) * kHeads * kDim);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = 0.001f * static_cast<float>(i % 4099) - 2;
  BatchBuilder batch;
  for (Position p = 0; p < tokens; p += max_batch) {
    const std::int32_t count = std::min<Position>(max_batch, tokens - p);
    batch.Clear();
    batch.Add(kFirst, p, count);
    Require(cache.StartForward(batch.view(), ForwardMode::kCompute));
    for (int layer = 0; layer < layers; ++layer) {
      const TensorView view = TensorView::Dense(row.data(), DType::kF32, kDim, kHeads, count);
      cache.SetLayer(layer);
      Require(cache.Put(view, view));
      row[static_cast<std::size_t>(p + layer) % row.size()] += 1.0f;
    }
  }
}

void MeasureLazy(Backend& backend, int rounds) {
  std::printf("lazy, median µs     take    split    merge  restore\n");
  for (const int tokens : {1000, 10'000, 100'000, 1'000'000}) {
    auto cache = MakeCausalCache();
    Require(cache->Init(backend, {DType::kF16, DType::kF16, 2, tokens, 1000}));
    Fill(*cache, tokens, 0, 1000);
    std::vector<double> take, split, merge, restore;
    for (int i = 0; i < rounds; ++i) {
      std::unique_ptr<Snapshot> whole;
      SnapshotParts parts;
      take.push_back(
          Seconds([&] { whole = Require(cache->snapshots()->TakeSnapshot(kFirst, 0, tokens)); }));
      split.push_back(
          Seconds([&] { parts = Require(cache->snapshots()->SplitSnapshot(whole, tokens / 3)); }));
      merge.push_back(Seconds(
          [&] { whole = Require(cache->snapshots()->MergeSnapshots(parts.first, parts.second)); }));
      restore.push_back(
          Seconds([&] { Require(cache->snapshots()->Restore(kSecond, whole.get(), tokens)); }));
      if (whole->HeldBytes() != 0 || !cache->CanResume(kSecond, tokens)) Fail("not restored");
      Require(cache->Remove(kSecond, 0, kEndOfSequence));
    }
    Record(StrCat("take a lazy snapshot of ", tokens), take);
    Record(StrCat("split a lazy snapshot of ", tokens), split);
    Record(StrCat("merge a lazy snapshot of ", tokens), merge);
    Record(StrCat("restore a lazy snapshot of ", tokens), restore);
    std::printf("%9d tokens %8.2f %8.2f %8.2f %8.2f\n", tokens, 1e6 * Median(take),
                1e6 * Median(split), 1e6 * Median(merge), 1e6 * Median(restore));
  }
}

// Copies the bytes by all threads, as they lie: 64 pieces.
void PlainCopy(ThreadPool& pool, const AlignedBuffer& from, const AlignedBuffer& to) {
  constexpr std::size_t kPieces = 64;
  const std::size_t piece = from.size_bytes() / kPieces;
  pool.ParallelFor(kPieces, [&](std::int64_t i, int) {
    std::memcpy(to.data() + i * piece, from.data() + i * piece, piece);
  });
}

// The times of the copies of one snapshot.
struct CopyTimes {
  std::vector<double> plain, materialize, import_bytes, restore, export_bytes;
};

// Measures the copies of the first sequence's `tokens` tokens, of which `expected` is the export. The
// plain copy and the pages of snapshots take new memory, or memory that was used before.
CopyTimes MeasureCopies(Cache& cache, ThreadPool& pool, Position tokens,
                        const std::vector<std::byte>& expected, bool reuse, int rounds) {
  auto source = Require(AlignedBuffer::Make(expected.size()));
  std::memcpy(source.data(), expected.data(), expected.size());
  AlignedBuffer target;
  const auto exported = Require(AlignedBuffer::Make(expected.size()));
  const std::span<std::byte> bytes(exported.data(), exported.size_bytes());
  CopyTimes times;
  cache.snapshots()->LimitSpareBytes(0);
  if (reuse) cache.snapshots()->LimitSpareBytes(kDefaultSpareBytes);
  for (int i = -1; i < rounds; ++i) {  // the first round is not measured
    CopyTimes round;
    const auto time = [](std::vector<double>& seconds, const auto& call) {
      seconds.push_back(Seconds(call));
    };
    if (!reuse) target = AlignedBuffer();
    time(round.plain, [&] {
      if (target.size_bytes() == 0) target = Require(AlignedBuffer::Make(source.size_bytes()));
      PlainCopy(pool, source, target);
    });
    auto snapshot = Require(cache.snapshots()->TakeSnapshot(kFirst, 0, tokens));
    time(round.materialize, [&] { Require(cache.snapshots()->Materialize(*snapshot)); });
    time(round.restore,
         [&] { Require(cache.snapshots()->Restore(kSecond, snapshot.get(), tokens)); });
    time(round.export_bytes, [&] { Require(cache.snapshots()->Export(*snapshot, bytes)); });
    snapshot.reset();
    time(round.import_bytes, [&] { snapshot = Require(cache.snapshots()->Import(bytes)); });
    if (i < 0) {
      const auto second = Require(cache.snapshots()->TakeSnapshot(kSecond, 0, tokens));
      std::vector<std::byte> restored(expected.size());
      Require(cache.snapshots()->Export(*second, restored));
      if (!std::equal(bytes.begin(), bytes.end(), expected.begin()) || restored != expected)
        Fail("other bytes");
      Require(cache.snapshots()->Export(*snapshot, restored));
      if (restored != expected) Fail("other bytes after an import");
      continue;
    }
    for (auto list : {&CopyTimes::plain, &CopyTimes::materialize, &CopyTimes::import_bytes,
                      &CopyTimes::restore, &CopyTimes::export_bytes}) {
      (times.*list).push_back((round.*list).front());
    }
  }
  return times;
}

void MeasureBytes(Backend& backend, int threads, int rounds) {
  constexpr Position kTokens = 8000;
  ThreadPool pool(threads);
  std::printf(
      "8,000 tokens       MB   memory  plain copy  materialise       import      restore       "
      "export   (GB/s, and share of the plain copy)\n");
  for (const DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0}) {
    auto cache = MakeCausalCache();
    Require(cache->Init(backend, {type, type, 2, 8192, 512}));
    Fill(*cache, kTokens, 16, 512);
    std::vector<std::byte> expected;
    {
      auto snapshot = Require(cache->snapshots()->TakeSnapshot(kFirst, 0, kTokens));
      expected.resize(static_cast<std::size_t>(Require(cache->snapshots()->ExportSize(*snapshot))));
      Require(cache->snapshots()->Export(*snapshot, expected));
    }
    const double size = static_cast<double>(expected.size());
    for (const bool reuse : {false, true}) {
      const CopyTimes times = MeasureCopies(*cache, pool, kTokens, expected, reuse, rounds);
      const double plain = Median(times.plain);
      const char* const memory = reuse ? "reused" : "new";
      std::printf("%-12s %8.0f %8s %11.1f", std::string(InfoOf(type).name).c_str(), size / 1e6,
                  memory, size / plain / 1e9);
      const auto print = [&](const char* what, const std::vector<double>& seconds) {
        Record(StrCat(what, " 8000 tokens in ", InfoOf(type).name, ", ", memory, " memory"),
               seconds, size, plain);
        std::printf("  %6.1f %3.0f%%", size / Median(seconds) / 1e9, 100 * plain / Median(seconds));
      };
      print("materialise", times.materialize);
      print("import", times.import_bytes);
      if (reuse) print("restore", times.restore);  // these write to memory that exists
      if (reuse) print("export", times.export_bytes);
      std::printf("\n");
    }
  }
}

// Begin and Commit, without the pass between them, in microseconds per sequence.
void MeasureRounds(Backend& backend, const char* name, const CausalOptions& options, int rounds) {
  std::printf("%-12s", name);
  for (const int sequences : {1, 8, 64}) {
    auto cache = MakeCausalCache(options);
    Require(cache->Init(backend, {DType::kF16, DType::kF16, sequences, 4096, 512}));
    std::vector<SequenceLength> members(sequences);
    std::vector<Position> kept(sequences, 1);
    BatchBuilder batch;
    for (int i = 0; i < sequences; ++i) members[i] = {SequenceId{i}, 0};
    std::vector<double> times;
    Cache* const caches[] = {cache.get()};
    for (int round = 0; round < rounds * 20; ++round) {
      batch.Clear();
      for (const auto& [id, length] : members) batch.Add(id, length);
      std::optional<Transaction> transaction;
      double seconds = Seconds(
          [&] { transaction = Require(Transaction::Begin(caches, members, {.max_tokens = 1})); });
      Require(cache->StartForward(batch.view(), ForwardMode::kCompute));
      seconds += Seconds([&] { Require(transaction->Commit(kept)); });
      times.push_back(seconds / sequences);
      for (auto& member : members) ++member.length;
    }
    if (!cache->CanResume(SequenceId{0}, members[0].length)) Fail("a commit was lost");
    Record(StrCat("begin and commit, ", name, ", each of ", sequences), times);
    std::printf("  %2d sequences %5.2f", sequences, 1e6 * Median(times));
  }
  std::printf("\n");
}

void MeasureRollback(Backend& backend, int rounds) {
  std::printf("rollback of 8 tokens, µs");
  for (const int tokens : {1000, 10'000, 100'000, 1'000'000}) {
    auto cache = MakeCausalCache();
    Require(cache->Init(backend, {DType::kF16, DType::kF16, 1, tokens + 8, 1000}));
    Fill(*cache, tokens, 0, 1000);
    Cache* const caches[] = {cache.get()};
    const SequenceLength members[] = {{kFirst, tokens}};
    BatchBuilder batch;
    batch.Add(kFirst, tokens, 8);
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      Transaction transaction = Require(Transaction::Begin(caches, members, {.max_tokens = 8}));
      Require(cache->StartForward(batch.view(), ForwardMode::kCompute));
      times.push_back(Seconds([&] { transaction.RollBack(); }));
      if (cache->CanResume(kFirst, tokens + 1)) Fail("not rolled back");
    }
    Record(StrCat("roll back 8 tokens behind ", tokens), times);
    std::printf("   %d: %.2f", tokens, 1e6 * Median(times));
  }
  std::printf("\n");
}

int Main(int argc, char** argv) {
  bench::ProgramOptions options;
  CLI::App app("Measures snapshots and transactions.");
  app.add_option("--threads", options.threads, "number of threads, including the caller")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "number of measurements of a case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "also write the results to this file (bench/README.md)");
  CLI11_PARSE(app, argc, argv);
  const int rounds = options.rounds;
  auto backend = Require(MakeCpuBackend({.threads = options.threads}));
  MeasureLazy(*backend, rounds);
  MeasureBytes(*backend, options.threads, rounds);
  std::printf("Begin and Commit of one token, median µs per sequence\n");
  MeasureRounds(*backend, "full", {}, rounds);
  MeasureRounds(*backend, "window 512", {.window = 512, .retained_tokens = 1024}, rounds);
  MeasureRollback(*backend, rounds);
  const bool written = bench::WriteResult(
      options.json,
      {"snapshot", bench::MachineFacts(options.threads), options.Settings(), std::move(cases)});
  return written ? 0 : 1;
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  try {
    return kvcache::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "snapshot_bench: %s\n", error.what());
    return 1;
  }
}
