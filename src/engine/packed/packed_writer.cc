#include "engine/packed/packed_writer.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/errors.h"
#include "platform/aligned_buffer.h"
#include "platform/mapped_file_faults.h"
#include "platform/output/new_file.h"

namespace kvcache::packed {
namespace {

// The disk is never so far behind that the end waits for long.
constexpr std::uint64_t kPiecesWrittenOut = 64;
constexpr mode_t kMode = S_IRUSR | S_IWUSR;  // whoever can write it decides what the model says

Places PlacesOfWeights(const PackedModel& model) {
  std::vector<std::uint64_t> sizes;
  for (const WeightPanels& weight : model.weights) sizes.push_back(weight.bytes);
  return PlacesOf(sizes);
}

// Composes the pieces of a file, one after the other.
class PieceComposer {
 public:
  PieceComposer(const PackedModel& model, const Places& places, std::span<std::byte> memory)
      : weights_(model.weights), places_(places), memory_(memory) {}

  // Returns the bytes of the file from `begin` on.
  std::span<const std::byte> Next(std::uint64_t begin) {
    const std::uint64_t end = std::min(begin + kPieceBytes, places_.end);
    std::ranges::fill(memory_, std::byte{0});
    for (; first_ < weights_.size() && places_.at[first_] < end; ++first_) {
      const std::uint64_t at = places_.at[first_];
      const std::uint64_t from = std::max(at, begin);
      const std::uint64_t to = std::min(at + weights_[first_].bytes, end);
      if (from < to) {
        std::memcpy(memory_.data() + (from - begin), weights_[first_].panels.get() + (from - at),
                    to - from);
      }
      if (at + weights_[first_].bytes > end) break;  // the next piece goes on with it
    }
    return memory_.first(end - begin);
  }

 private:
  std::span<const WeightPanels> weights_;
  const Places& places_;
  std::span<std::byte> memory_;
  std::size_t first_ = 0;  // weight that the next piece has bytes of
};

}  // namespace

bool IsGone(const std::string& model) {
  struct stat info {};
  return stat(model.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::uint64_t FileBytesOf(const PackedModel& model) {
  return FileBytes(PlacesOfWeights(model));
}

Status WriteFile(const std::string& path, const PackedModel& model, WriteProgress& progress) {
  const Places places = PlacesOfWeights(model);
  auto created = NewFile::Create(path, FileBytes(places), kMode);
  if (!created.ok()) {
    // The folder is one's own: what fails is the room, on the disk or in a quota.
    const bool is_room = created.status().code() == StatusCode::kIo;
    return is_room ? OutOfMemory(created.status().message()) : created.status();
  }
  const std::unique_ptr<NewFile> file = std::move(*created);
  KVCACHE_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::Make(kPieceBytes));
  PieceComposer composer(model, places, {memory.data(), memory.size_bytes()});
  PackedTable table{.model = model.model,
                    .digest = model.digest,
                    .layout = model.layout,
                    .end = places.end,
                    .path = model.path};
  for (std::uint64_t piece = 1; piece <= places.pieces; ++piece) {
    if (progress.stop.load()) return {StatusCode::kCancelled, "stopped"};
    std::span<const std::byte> bytes;
    std::uint64_t sum = 0;
    const bool is_read = RunGuarded([&] {
      bytes = composer.Next(piece * kPieceBytes);
      sum = HashOfPiece(bytes);
    });
    if (!is_read) return Corrupt("panels of the file before are not there any more");
    table.sums.push_back(sum);
    KVCACHE_RETURN_IF_ERROR(file->WriteAt(piece * kPieceBytes, bytes));
    if (piece % kPiecesWrittenOut == 0) KVCACHE_RETURN_IF_ERROR(file->WriteOut());
    progress.left_bytes.store(places.end - piece * kPieceBytes - bytes.size());
  }
  for (std::size_t i = 0; i < model.weights.size(); ++i) {
    table.entries.push_back({model.weights[i].key, places.at[i], model.weights[i].bytes});
  }
  const TableBytes bytes = Write(table);
  KVCACHE_RETURN_IF_ERROR(file->WriteAt(places.end, bytes.table));
  KVCACHE_RETURN_IF_ERROR(file->WriteAt(0, bytes.header));
  if (IsGone(model.path)) return {StatusCode::kCancelled, "the model was removed"};
  return file->Commit();
}

}  // namespace kvcache::packed
