#include "engine/packed/model_panels.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/packed/packed_folder.h"
#include "model/load/model_digest.h"
#include "store/disk/store_directory.h"

namespace kvcache::packed {
namespace {

constexpr const char* kPackAgain = "; the weights are packed again";

// Others come first: the model runs meanwhile.
void YieldToOthers() {
  constexpr int kNice = 10;
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace

ModelPanels::ModelPanels(const GgufFile& file, std::string path, std::uint64_t layout, Tell tell)
    : file_(file), path_(std::move(path)), tell_(std::move(tell)) {
  model_.model = file.identity();
  model_.path = RealPath(file.path());
  model_.layout = layout;
  // In a folder that is missing or not one's own there is nothing to read; a writer says what is wrong with it.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  if (!store::PrepareStoreDirectory(folder, store::MissingDirectory::kRefuse).ok()) return;
  auto opened = PackedFile::Open(path_, model_.model, layout);
  if (opened.ok()) {
    packed_ = std::move(*opened);
    if (packed_ != nullptr) RememberModelDigest(model_.model, packed_->model_digest());
  } else {
    tell_(Report::kProblem,
          StrCat("packed weights are not used: ", opened.status().message(), kPackAgain));
  }
}

ModelPanels::~ModelPanels() {
  progress_->stop.store(true);
  if (writer_.joinable()) writer_.join();
}

const GgufPart* ModelPanels::PartOf(const TensorView& w) const {
  for (const GgufPart& part : file_.parts()) {
    const std::byte* const begin = part.bytes.data();
    if (w.data >= begin && w.data < begin + part.bytes.size()) return &part;
  }
  return nullptr;
}

WeightKey ModelPanels::KeyOf(const GgufPart& part, const TensorView& w) const {
  return {.part = static_cast<std::uint64_t>(&part - file_.parts().data()),
          .offset = static_cast<std::uint64_t>(w.data - part.bytes.data()),
          .inputs = static_cast<std::uint64_t>(w.dims[0]),
          .outputs = static_cast<std::uint64_t>(w.dims[1]),
          .matrices = static_cast<std::uint64_t>(w.dims[2])};
}

const std::byte* ModelPanels::Find(const TensorView& w, std::size_t size_bytes) {
  const GgufPart* const part = packed_ == nullptr ? nullptr : PartOf(w);
  if (part == nullptr) return nullptr;
  const WeightKey key = KeyOf(*part, w);
  const std::byte* const panels = packed_->Find(key, size_bytes);
  if (panels == nullptr) return nullptr;
  model_.weights.push_back({key, {packed_, panels}, size_bytes, /*is_kept=*/true});
  return panels;
}

void ModelPanels::Keep(const TensorView& w, std::shared_ptr<const std::byte> panels,
                       std::size_t size_bytes) {
  const GgufPart* const part = PartOf(w);
  if (part == nullptr) return;
  model_.weights.push_back({KeyOf(*part, w), std::move(panels), size_bytes});
  lacks_panels_ = true;
}

PanelStore::Pieces ModelPanels::PiecesOf(const std::byte* panels, std::size_t size_bytes) const {
  return packed_->PiecesOf(panels, size_bytes);
}

bool ModelPanels::CheckPiece(std::int64_t piece) {
  if (packed_->IsSound(piece)) return true;
  if (is_damaged_.exchange(true)) return false;
  packed_->Remove();
  tell_(Report::kProblem,
        StrCat("packed weights are damaged: ", path_, " was removed", kPackAgain));
  return false;
}

std::uint64_t ModelPanels::FileBytes() const {
  return FileBytesOf(model_);
}

Status ModelPanels::CheckKept() {
  for (const WeightPanels& weight : model_.weights) {
    if (!weight.is_kept) continue;
    const Pieces pieces = PiecesOf(weight.panels.get(), weight.bytes);
    for (std::int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
      if (progress_->stop.load() || !CheckPiece(piece)) return {StatusCode::kCancelled, "stopped"};
    }
  }
  return Status::Ok();
}

Status ModelPanels::WriteNow(const std::function<Status()>& make_room) {
  KVCACHE_RETURN_IF_ERROR(CheckKept());
  KVCACHE_RETURN_IF_ERROR(make_room());
  return WriteFile(path_, model_, *progress_);
}

void ModelPanels::TellOf(const Status& status) const {
  if (status.ok()) {
    tell_(Report::kDone,
          StrCat("packed weights are kept in ", path_, " (",
                 HumanBytes(static_cast<std::int64_t>(FileBytes())),
                 "), so that the next start is faster; --packed-weights off keeps none"));
  } else if (status.code() != StatusCode::kCancelled) {
    const bool is_room = status.code() == StatusCode::kOutOfMemory;
    tell_(is_room ? Report::kNoRoom : Report::kProblem,
          StrCat("packed weights are not kept: ", status.message()));
  }
}

Status ModelPanels::Write(std::function<Status()> make_room, std::function<void()> done) {
  model_.digest = ModelDigest(file_);
  progress_->left_bytes.store(FileBytes());
  const auto write = [this, make_room = std::move(make_room), done = std::move(done)] {
    YieldToOthers();
    try {
      TellOf(WriteNow(make_room));
    } catch (const std::bad_alloc&) {  // then there is none for a message either
    }
    model_.weights.clear();
    done();
  };
  try {
    writer_ = std::thread(write);
    return Status::Ok();
  } catch (const std::system_error&) {
    return OutOfMemory("no thread to write packed weights");
  }
}

}  // namespace kvcache::packed
