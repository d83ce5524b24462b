#include "engine/prefix_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/store_fingerprint.h"
#include "engine/token_keys.h"
#include "store/content_hash.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMostWaitingBytes = std::int64_t{256} << 20;
constexpr int kMostWaitMs = 2000;  // for room in the queue, when a prompt or an answer is complete

std::span<const std::byte> TextBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Calls a function that uses a store, which must not throw into a request.
template <class Function>
Status WithoutExceptions(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, error.what()};
  }
}

}  // namespace

PrefixStore::PrefixStore(Engine& engine, std::shared_ptr<Store> store)
    : engine_(engine),
      store_(std::move(store)),
      is_divisible_(IsDivisible(engine.info().memory)),
      writer_(*store_, kMostWaitingBytes) {
  for (const LayerMemory& layer : engine.info().memory) {
    const bool grows =
        layer.kind == LayerMemory::Kind::kFull || layer.kind == LayerMemory::Kind::kChunked;
    states_are_small_ = states_are_small_ && !grows;
  }
}

Result<std::unique_ptr<PrefixStore>> PrefixStore::Make(Engine& engine,
                                                       std::shared_ptr<Store> store) {
  try {
    std::unique_ptr<PrefixStore> made(new PrefixStore(engine, std::move(store)));
    KVCACHE_ASSIGN_OR_RETURN(const StoreHash model, ModelHash(engine, *made->store_));
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, FingerprintText(engine, model));
    KVCACHE_ASSIGN_OR_RETURN(made->fingerprint_, StoreHashOf(TextBytes(text)));
    KVCACHE_ASSIGN_OR_RETURN(made->root_, StoreHashOf(TextBytes("kvcache prefixes, version 1")));
    made->saved_ = made->Nothing();
    return made;
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, error.what());
  }
}

// SHA-256 of the key before, the number of tokens and the tokens, little-endian.
Result<StoreHash> PrefixStore::KeyAfter(const StoreHash& parent,
                                        std::span<const std::int32_t> tokens) const {
  std::vector<std::byte> text(parent.bytes.begin(), parent.bytes.end());
  const auto add = [&](std::uint32_t number) {
    for (int i = 0; i < 4; ++i) text.push_back(static_cast<std::byte>(number >> (8 * i)));
  };
  add(static_cast<std::uint32_t>(tokens.size()));
  for (const std::int32_t token : tokens) add(static_cast<std::uint32_t>(token));
  return StoreHashOf(text);
}

bool PrefixStore::Has(const ObjectId& id) {
  if (writer_.Holds(id)) return true;
  const auto has = store_->Contains(id);
  return has.ok() && *has;
}

Result<std::vector<PrefixStore::Piece>> PrefixStore::Divide(std::span<const std::int32_t> tokens,
                                                            Position least, Piece from,
                                                            const Accepts& accepts) const {
  std::vector<Piece> pieces;
  const auto end = static_cast<Position>(tokens.size());
  for (Position size = kChunk; size >= least;) {
    bool is_taken = false;
    if (from.end + size <= end) {
      const auto text =
          tokens.subspan(static_cast<std::size_t>(from.end), static_cast<std::size_t>(size));
      KVCACHE_ASSIGN_OR_RETURN(const StoreHash key, KeyAfter(from.id.key, text));
      const Piece piece{{fingerprint_, key}, from.end, from.end + size};
      KVCACHE_ASSIGN_OR_RETURN(is_taken, accepts(piece.id));
      if (is_taken) pieces.push_back(from = piece);
    }
    if (!is_taken || size < kChunk) size /= 2;
  }
  return pieces;
}

// The keys after 0, 512, 1024, … tokens.
Result<std::vector<StoreHash>> PrefixStore::Chain(std::span<const std::int32_t> tokens) const {
  std::vector<StoreHash> chain{root_};
  for (; tokens.size() >= kChunk; tokens = tokens.subspan(kChunk)) {
    KVCACHE_ASSIGN_OR_RETURN(StoreHash key, KeyAfter(chain.back(), tokens.first(kChunk)));
    chain.push_back(key);
  }
  return chain;
}

Result<ObjectId> PrefixStore::StateId(std::span<const StoreHash> chain,
                                      std::span<const std::int32_t> tokens) const {
  const std::size_t whole = tokens.size() / kChunk;
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash key,
                           KeyAfter(chain[whole], tokens.subspan(whole * kChunk)));
  return ObjectId{fingerprint_, key};
}

Status PrefixStore::LoadObject(Session& session, const ObjectId& id,
                               std::span<const std::int32_t> tokens) {
  bool is_wrong = false;
  Status status = store_->Get(id, [&](std::span<const std::byte> payload) -> Status {
    auto snapshot = engine_.cache().Import(payload);
    is_wrong = !snapshot.ok() && snapshot.status().code() != StatusCode::kOutOfMemory;
    if (!snapshot.ok()) return std::move(snapshot).TakeStatus();
    return session.Restore(snapshot->get(), tokens);
  });
  if (is_wrong) (void)store_->Remove(id).ok();
  return status;
}

Status PrefixStore::LoadPieces(Session& session, std::span<const std::int32_t> tokens) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                           Divide(tokens, kLeastPiece, Nothing(),
                                  [this](const ObjectId& id) { return store_->Contains(id); }));
  if (pieces.empty()) return Status::Ok();
  const auto most = static_cast<Position>(tokens.size()) - 1;
  Status status;
  if (std::min(pieces.back().end, most) >= session.position() + kLeastPiece) {
    for (const Piece& piece : pieces) {
      const Position target = std::min(piece.end, most);
      if (target <= session.position()) continue;
      status = LoadObject(session, piece.id, tokens.first(static_cast<std::size_t>(target)));
      if (!status.ok()) break;
    }
  }
  // The first piece of a chain is of use to most prompts, and goes last.
  std::vector<ObjectId> used;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) used.push_back(piece->id);
  store_->Touch(used);
  return status;
}

Status PrefixStore::LoadState(Session& session, std::span<const std::int32_t> tokens) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoreHash> chain, Chain(tokens));
  Status first;
  for (auto length = static_cast<Position>(tokens.size()) - 1;
       length >= session.position() + kLeastPiece; --length) {
    const auto prefix = tokens.first(static_cast<std::size_t>(length));
    KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, StateId(chain, prefix));
    KVCACHE_ASSIGN_OR_RETURN(const bool has, store_->Contains(id));
    if (!has) continue;
    Status status = LoadObject(session, id, prefix);
    if (status.ok()) return status;
    if (first.ok()) first = std::move(status);
  }
  return first;
}

PrefixStore::Loaded PrefixStore::Load(Session& session, std::span<const std::int32_t> tokens) {
  const auto start = std::chrono::steady_clock::now();
  const Position before = session.position();
  Loaded loaded;
  const Status status = WithoutExceptions(
      [&] { return is_divisible_ ? LoadPieces(session, tokens) : LoadState(session, tokens); });
  if (!status.ok()) loaded.problem = status.message();
  loaded.tokens = std::max<Position>(0, session.position() - before);
  loaded.ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  saved_ = Nothing();
  return loaded;
}

Status PrefixStore::Write(const Snapshot& snapshot, const ObjectId& id, int most_wait_ms) {
  Cache& cache = engine_.cache();
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t size, cache.ExportSize(snapshot));
  KVCACHE_ASSIGN_OR_RETURN(StoreBytes bytes, StoreBytes::Make(static_cast<std::size_t>(size)));
  KVCACHE_RETURN_IF_ERROR(cache.Export(snapshot, bytes.span()));
  if (writer_.Add(id, std::move(bytes), most_wait_ms) == WriteBehind::Outcome::kQueued) {
    return Status::Ok();
  }
  return {StatusCode::kCacheFull, "the store is slower than the engine"};
}

void PrefixStore::Save(const Session& session, Extent extent) {
  if (!is_divisible_ || session.unshifted() != session.position()) return;
  const Status status = WithoutExceptions([&]() -> Status {
    const Position least = extent == Extent::kAll ? kLeastPiece : kChunk;
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                             Divide(session.tokens(), least, saved_,
                                    [](const ObjectId&) -> Result<bool> { return true; }));
    std::vector<ObjectId> known;
    for (const Piece& piece : pieces) {
      if (Has(piece.id)) {
        known.insert(known.begin(), piece.id);
      } else {
        KVCACHE_ASSIGN_OR_RETURN(
            const auto snapshot,
            engine_.cache().TakeSnapshot(session.sequence(), piece.begin, piece.end));
        if (snapshot == nullptr) break;
        KVCACHE_RETURN_IF_ERROR(
            Write(*snapshot, piece.id, extent == Extent::kAll ? kMostWaitMs : 0));
      }
      if (piece.end - piece.begin == kChunk) saved_ = piece;
    }
    store_->Touch(known);
    return Status::Ok();
  });
  (void)status.ok();  // what was not stored is computed again
}

void PrefixStore::SaveState(const Snapshot& state, std::span<const std::int32_t> tokens) {
  if (is_divisible_ || tokens.size() < kLeastPiece) return;
  const Status status = WithoutExceptions([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoreHash> chain, Chain(tokens));
    KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, StateId(chain, tokens));
    if (!Has(id)) return Write(state, id, kMostWaitMs);
    store_->Touch(std::span(&id, 1));
    return Status::Ok();
  });
  (void)status.ok();
}

}  // namespace kvcache
