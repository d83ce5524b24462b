#include "engine/persist/prefix_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/persist/fingerprint_list.h"
#include "engine/persist/state_index.h"
#include "engine/persist/store_calls.h"
#include "engine/persist/store_fingerprint.h"
#include "engine/prefixes/hidden_states.h"
#include "engine/prefixes/token_keys.h"
#include "store/content_hash.h"

namespace kvcache {
namespace {

static_assert(HiddenStates::kMarkedTokens == PrefixKeys::kChunk, "ends of chunks have states");

constexpr std::int64_t kMaxWriteBehindBytes = std::int64_t{256} << 20;

std::span<const std::byte> TextBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

PrefixStore::PrefixStore(Engine& engine, std::shared_ptr<Store> store)
    : engine_(engine),
      store_(std::move(store)),
      is_divisible_(IsDivisible(engine.info().memory)),
      has_encoder_(engine.has_encoder()),
      writer_(*store_, kMaxWriteBehindBytes) {
  for (const LayerMemory& layer : engine.info().memory) {
    const bool grows =
        layer.kind == LayerMemory::Kind::kFull || layer.kind == LayerMemory::Kind::kChunked;
    states_are_small_ = states_are_small_ && !grows;
    if (layer.kind != LayerMemory::Kind::kCross) continue;
    const auto at = static_cast<std::size_t>(layer.layer);
    output_shapes_.resize(std::max(output_shapes_.size(), at + 1));
    output_shapes_[at] = layer.kv;
  }
}

Result<std::unique_ptr<PrefixStore>> PrefixStore::Make(Engine& engine,
                                                       std::shared_ptr<Store> store) {
  try {
    std::unique_ptr<PrefixStore> made(new PrefixStore(engine, std::move(store)));
    KVCACHE_ASSIGN_OR_RETURN(const StoreHash model, ModelHash(engine, *made->store_));
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, FingerprintText(engine, model));
    KVCACHE_ASSIGN_OR_RETURN(const StoreHash fingerprint, store::StoreHashOf(TextBytes(text)));
    KVCACHE_ASSIGN_OR_RETURN(made->keys_, PrefixKeys::Make(fingerprint));
    KVCACHE_ASSIGN_OR_RETURN(made->fingerprints_, ReadFingerprints(*made->store_));
    made->fingerprint_text_ = text;
    return made;
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, error.what());
  }
}

Result<StoredState> PrefixStore::Read(std::span<const std::byte> payload) {
  const HiddenStates* const states = engine_.states();
  return ReadStoredState(engine_.cache(), payload, states == nullptr ? 0 : states->hidden_size());
}

Status PrefixStore::Write(const Snapshot& snapshot, std::span<const float> last, const ObjectId& id,
                          int max_wait_ms) {
  KVCACHE_ASSIGN_OR_RETURN(store::StoreBytes bytes,
                           WriteStoredState(engine_.cache(), snapshot, last));
  return Queue(id, std::move(bytes), max_wait_ms);
}

Status PrefixStore::Queue(const ObjectId& id, store::StoreBytes bytes, int max_wait_ms) {
  if (writer_.Add(id, std::move(bytes), max_wait_ms) == store::WriteBehind::Outcome::kQueued) {
    Announce();
    return Status::Ok();
  }
  return CacheFull("the store is slower than the engine");
}

std::string PrefixStore::WhyMissed(std::span<const std::int32_t> tokens, std::uint64_t salt) {
  std::string why;
  const Status status = WithoutExceptions([&] {
    why = has_encoder_
              ? WhyTextMissed(*store_, fingerprint_text_, fingerprints_, tokens, salt)
              : kvcache::WhyMissed(*store_, fingerprint_text_, fingerprints_, tokens, salt);
    return Status::Ok();
  });
  return status.ok() ? why : std::string();
}

// The first object of a process tells the store its fingerprint.
void PrefixStore::Announce() {
  if (std::exchange(is_announced_, true)) return;
  writer_.Do([text = fingerprint_text_](Store& store) { return AddFingerprint(store, text); });
}

Status PrefixStore::WritePiece(SequenceId sequence, const StoredPiece& piece, int max_wait_ms) {
  KVCACHE_ASSIGN_OR_RETURN(const auto snapshot, engine_.cache().snapshots()->TakeSnapshot(
                                                    sequence, piece.begin, piece.end));
  if (snapshot == nullptr) return Unsupported("the cache has no state there");
  return Write(*snapshot, LastState(engine_, sequence, piece.end), piece.id, max_wait_ms);
}

void PrefixStore::SavePieces(SequenceId sequence, std::span<const std::int32_t> tokens,
                             Extent extent, Known& known) {
  const Position min = extent == Extent::kAll ? kMinPiece : kChunk;
  const int wait_ms = extent == Extent::kAll ? known.max_wait_ms : 0;
  const bool has_piece = static_cast<Position>(tokens.size()) >= known.last.end + min;
  if (!is_divisible_ || !has_piece) return;
  const Status status = WithoutExceptions([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(
        const std::vector<StoredPiece> pieces,
        keys_->Divide(tokens, min, known.last, [](const ObjectId&) { return true; }));
    for (const StoredPiece& piece : pieces) {
      const bool is_known =
          std::find(known.ids.begin(), known.ids.end(), piece.id) != known.ids.end();
      if (!is_known) KVCACHE_RETURN_IF_ERROR(WritePiece(sequence, piece, wait_ms));
      if (piece.end - piece.begin == kChunk) {
        known.last = piece;
      } else if (!is_known) {
        known.ids.push_back(piece.id);
      }
    }
    return Status::Ok();
  });
  (void)status.ok();
}

// The list is written after the state.
Status PrefixStore::List(const StoredPiece& state, std::span<const StoreHash> chain) {
  KVCACHE_ASSIGN_OR_RETURN(const ObjectId list,
                           keys_->ListId(chain[static_cast<std::size_t>(state.end / kChunk)]));
  writer_.Do([list, state](Store& store) { return ListState(store, list, state); });
  return Status::Ok();
}

void PrefixStore::SaveState(const Snapshot& state, std::span<const float> last,
                            std::span<const std::int32_t> tokens, std::uint64_t salt,
                            Known& known) {
  if (is_divisible_ || tokens.size() < kMinPiece) return;
  const Status status = WithoutExceptions([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoreHash> chain, keys_->Chain(tokens, salt));
    KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, keys_->StateId(chain, tokens));
    if (std::find(known.ids.begin(), known.ids.end(), id) != known.ids.end()) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(Write(state, last, id, known.max_wait_ms));
    known.ids.push_back(id);
    return List({id, 0, static_cast<Position>(tokens.size())}, chain);
  });
  (void)status.ok();
}

// A state of a model with growing layers holds all tokens before it, so that many of them would take the
// square of the prompt's length. The ends of messages, the end of the prompt and lengths that double are
// stored: half of a matching prompt is found at least.
bool PrefixStore::IsStateWorthStoring(Position length, Position prompt,
                                      std::span<const Position> restore_points) const {
  const Position chunks = length / kChunk;
  const bool doubles = length % kChunk == 0 && (chunks & (chunks - 1)) == 0;
  return states_are_small_ || doubles || length + 1 >= prompt ||
         std::binary_search(restore_points.begin(), restore_points.end(), length);
}

}  // namespace kvcache
