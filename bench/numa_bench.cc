// Asks the system on which memory node weights and cells are, and measures what that is worth.
//
//   numa_bench [--threads=N] [--megabytes=N] [--rounds=N] [--clock=cpu] [--json=FILE] [--least-share=S]
//
// Of each kind of weights (packed, packed and mapped from a file whose pages one node has, in place in such a file) and
// of the cells of a layer: the share of bytes that are on the node whose threads read them, as move_pages(2) says, and
// the time of a product of one token with threads on nodes, and without. Ends with an error if a share is below
// --least-share. Pages that the system's own balancing of nodes looks at are in no memory meanwhile, and do not count:
// /proc/sys/kernel/numa_balancing says whether it is on. On a machine with one node it says so and ends.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv/cell_nodes.h"
#include "backend/cpu/linear/linear_weight.h"
#include "backend/cpu/linear/weight_nodes.h"
#include "backend/cpu/numa/on_nodes.h"
#include "bench_program.h"
#include "kvcache/panel_store.h"
#include "machine_limits.h"
#include "platform/mapped_file.h"
#include "platform/numa/memory_nodes.h"
#include "platform/numa/numa_system.h"
#include "platform/processors.h"

namespace kvcache::bench {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kInputs = 4096;

struct Options : ProgramOptions {
  std::int64_t megabytes = 256;
  double least_share = 0.0;
};

// Returns the nodes of pages; negative: not in memory.
std::vector<int> NodesOf(std::vector<void*> pages) {
  std::vector<int> nodes(pages.size(), -1);
  syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0);
  return nodes;
}

// Counts bytes by whether they are where their readers are.
struct Places {
  std::int64_t local = 0;
  std::int64_t all = 0;

  void Add(std::span<const std::byte> bytes, int node) {
    std::vector<void*> pages;
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    const std::uintptr_t end = begin + bytes.size();
    for (std::uintptr_t page = begin / kPage * kPage; page < end; page += kPage) {
      pages.push_back(reinterpret_cast<void*>(page));
    }
    const std::vector<int> nodes = NodesOf(pages);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto page = reinterpret_cast<std::uintptr_t>(pages[i]);
      const auto size =
          static_cast<std::int64_t>(std::min(page + kPage, end) - std::max(page, begin));
      if (nodes[i] >= 0) all += size;
      if (nodes[i] == node) local += size;
    }
  }
  // The share of the bytes that are in memory at all.
  double Share() const {
    return static_cast<double>(local) / static_cast<double>(std::max<std::int64_t>(all, 1));
  }
};

// Panels in a file, written by a thread of one node.
class FileStore final : public PanelStore {
 public:
  explicit FileStore(std::string path) : path_(std::move(path)) {}
  const std::byte* Find(const TensorView& /*w*/, std::size_t size_bytes) override {
    return file_.bytes().size() == size_bytes ? file_.bytes().data() : nullptr;
  }
  void Keep(const TensorView& /*w*/, std::shared_ptr<const std::byte> panels,
            std::size_t size_bytes) override {
    WriteFile(path_, {panels.get(), size_bytes});
    file_ = Require(MappedFile::Open(path_));
  }
  Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const override {
    const std::int64_t at = panels - file_.bytes().data();
    return {at / kPiece, (at + static_cast<std::int64_t>(size_bytes) + kPiece - 1) / kPiece};
  }
  bool CheckPiece(std::int64_t piece) override {
    const auto begin = static_cast<std::size_t>(piece * kPiece);
    unsigned sum = 0;
    for (std::size_t i = begin; i < std::min(begin + kPiece, file_.bytes().size()); i += 64) {
      sum += static_cast<unsigned>(file_.bytes()[i]);
    }
    return sum != 1;  // always: it was read
  }

  // Writes from the first node's processors, whose memory the page cache then takes.
  static void WriteFile(const std::string& path, std::span<const std::byte> bytes) {
    std::thread([&] {
      const auto nodes = FindMemoryNodes(AllowedProcessors());
      (void)MachineNuma().Pin(nodes.front().processors);
      std::FILE* const file = std::fopen(path.c_str(), "wb");
      if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) {
        Fail("cannot write " + path);
      }
      std::fclose(file);
    }).join();
  }

 private:
  static constexpr std::int64_t kPiece = std::int64_t{2} << 20;
  std::string path_;
  MappedFile file_;
};

// A weight of rows of `megabytes` in all.
struct Setting {
  Setting(DType type, std::int64_t megabytes)
      : dtype(type),
        outputs(std::max<std::int64_t>(megabytes * (1 << 20) / BytesOf(type, kInputs) / 64, 1) *
                64),
        rows(static_cast<std::size_t>(BytesOf(type, kInputs) * outputs), std::byte{0x2c}),
        x(kInputs, 0.01f),
        y(static_cast<std::size_t>(outputs)) {}

  void Multiply(Backend& backend, const LinearWeight& weight) {
    const LinearOutput output{.weight = &weight,
                              .y = TensorView::Dense(y.data(), DType::kF32, outputs, 1)};
    Require(backend.Linear(TensorView::Dense(x.data(), DType::kF32, kInputs, 1), {&output, 1}));
  }
  double Measure(Backend& backend, const LinearWeight& weight, const Options& options) {
    std::vector<double> seconds;
    for (int round = 0; round < options.rounds; ++round) {
      const double begin = Seconds(options.clock);
      Multiply(backend, weight);
      seconds.push_back(Seconds(options.clock) - begin);
    }
    return Timing(std::move(seconds)).median;
  }

  DType dtype;
  std::int64_t outputs;
  std::vector<std::byte> rows;
  std::vector<float> x, y;
};

Places PlacesOf(const ThreadPool& pool, const LinearWeight& weight) {
  const bool is_block = weight.dtype() == DType::kQ8_0;
  const std::int64_t panel_bytes =
      is_block ? cpu::block::PanelBytes(weight.dtype(), weight.inputs()) : 0;
  const std::int64_t row_bytes =
      is_block ? panel_bytes / cpu::block::kPanelRows : BytesOf(weight.dtype(), weight.inputs());
  const std::byte* const data = is_block
                                    ? static_cast<const cpu::BlockWeight&>(weight).panels(0)
                                    : static_cast<const cpu::FloatWeight&>(weight).weights(0).rows;
  const auto bytes = static_cast<std::size_t>(row_bytes * weight.outputs());
  Places places;
  for (int node = 0; node < pool.nodes(); ++node) {
    places.Add(cpu::BytesOfNode(pool, weight, {{data, bytes}, row_bytes}, node),
               pool.node_id(node));
  }
  return places;
}

struct Row {
  double share = 0.0;
  double on_seconds = 0.0;
  double off_seconds = 0.0;
  double megabytes = 0.0;
};

std::unique_ptr<cpu::CpuBackend> OnNodes(const Options& options) {
  return cpu::MakeOnNodes(options.threads, FindMemoryNodes(AllowedProcessors()), MachineNuma());
}

// Files have been written from one node, whose memory the page cache took for them.
Row RunWeight(DType dtype, bool is_mapped, const Options& options) {
  Setting setting(dtype, options.megabytes);
  const std::string path = "/tmp/numa_bench." + std::to_string(getpid());
  Row row{.megabytes = static_cast<double>(setting.rows.size()) / 1e6};
  for (const bool on : {false, true}) {
    const std::unique_ptr<cpu::CpuBackend> backend =
        on ? OnNodes(options) : std::make_unique<cpu::CpuBackend>(options.threads);
    TensorView w = TensorView::Dense(setting.rows.data(), dtype, kInputs, setting.outputs);
    MappedFile file;
    if (is_mapped && dtype == DType::kQ8_0) {
      const auto store = std::make_shared<FileStore>(path);
      cpu::CpuBackend packs(1);
      packs.UsePanels(store);
      (void)Require(packs.MakeLinear(w));
      backend->UsePanels(store);
    } else if (is_mapped) {
      FileStore::WriteFile(path, setting.rows);
      file = Require(MappedFile::Open(path));
      w = TensorView::Dense(file.bytes().data(), dtype, kInputs, setting.outputs);
    }
    const auto weight = Require(backend->MakeLinear(w));
    setting.Multiply(*backend, *weight);
    (on ? row.on_seconds : row.off_seconds) = setting.Measure(*backend, *weight, options);
    if (on) row.share = PlacesOf(backend->pool(), *weight).Share();
    (void)unlink(path.c_str());
  }
  return row;
}

Row RunCells(const Options& options) {
  const auto backend = OnNodes(options);
  LayerKv layer{.shape = {8, 128, 128},
                .k_type = DType::kF16,
                .v_type = DType::kF16,
                .layout = KvLayout::kTiled,
                .cells = 8192};
  const auto k = Require(backend->AllocateCells(static_cast<std::size_t>(layer.KBytes())));
  const auto v = Require(backend->AllocateCells(static_cast<std::size_t>(layer.VBytes())));
  layer.k = k->data();
  layer.v = v->data();
  constexpr std::int32_t kTokens = 64;
  const std::vector<float> values(static_cast<std::size_t>(8 * 128 * kTokens), 0.5f);
  for (std::int32_t cell = 0; cell < layer.cells;) {
    // A prompt in passes, then single tokens.
    const std::int32_t count = cell < layer.cells / 2 ? kTokens : 1;
    const CellRun run{cell, count};
    const TensorView in = TensorView::Dense(values.data(), DType::kF32, 128, 8, count);
    Require(backend->StoreKv(layer, in, in, {&run, 1}));
    cell += count;
  }
  Places places;
  const auto head_bytes = static_cast<std::size_t>(layer.KBytes() / 8);
  for (int head = 0; head < 8; ++head) {
    const int node = backend->pool().node_id(cpu::NodeOfHead(backend->pool(), layer, head));
    places.Add({layer.k + static_cast<std::size_t>(head) * head_bytes, head_bytes}, node);
    places.Add({layer.v + static_cast<std::size_t>(head) * head_bytes, head_bytes}, node);
  }
  return {.share = places.Share(), .megabytes = static_cast<double>(places.all) / 1e6};
}

int Run(const Options& options) {
  const auto backend = OnNodes(options);
  if (backend->pool().nodes() == 1) {
    std::printf("this machine has one memory node, or the process has a memory policy\n");
    return 0;
  }
  std::printf("%s\n", backend->placement().c_str());
  nlohmann::json results = nlohmann::json::array();
  bool is_enough = true;
  const auto weight = [&](DType type, bool is_mapped) {
    return [&options, type, is_mapped] { return RunWeight(type, is_mapped, options); };
  };
  const std::pair<const char*, std::function<Row()>> cases[] = {
      {"packed q8_0", weight(DType::kQ8_0, false)},
      {"mapped panels q8_0", weight(DType::kQ8_0, true)},
      {"mapped rows f16", weight(DType::kF16, true)},
      {"cells", [&options] { return RunCells(options); }}};
  for (const auto& [name, run] : cases) {
    if (!options.Wants(name)) continue;
    const Row row = run();
    std::printf("%-20s %6.2f%% local", name, 100.0 * row.share);
    if (row.on_seconds > 0.0) {
      std::printf("  on nodes %8.2f GB/s  without %8.2f GB/s", row.megabytes / 1e3 / row.on_seconds,
                  row.megabytes / 1e3 / row.off_seconds);
    }
    std::printf("\n");
    is_enough = is_enough && row.share >= options.least_share;
    results.push_back({{"name", name},
                       {"kind", "placement"},
                       {"local_share", row.share},
                       {"median_ms", row.on_seconds * 1e3},
                       {"without_ms", row.off_seconds * 1e3}});
  }
  const bool written = WriteResult(options.json, {"numa", MachineFacts(options.threads),
                                                  options.Settings(), std::move(results)});
  return written && is_enough ? 0 : 1;
}

}  // namespace
}  // namespace kvcache::bench

int main(int argc, char** argv) {
  kvcache::bench::Options options;
  CLI::App app("Says on which memory nodes weights and cells are");
  kvcache::bench::AddOptions(app, options);
  app.add_option("--megabytes", options.megabytes, "of each weight")->check(CLI::PositiveNumber);
  app.add_option("--least-share", options.least_share, "fail below this share of local bytes");
  CLI11_PARSE(app, argc, argv);
  return kvcache::bench::Run(options);
}
