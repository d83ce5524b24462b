// Opens a GGUF model file and runs it: weights, tokenizer, and a cache for a number of sequences.
//
// Engine is the level of forward passes: it evaluates batches of tokens of any sequences and
// returns logits. Session (session.h) evaluates one sequence as a growing text, Generate
// (generate.h) is the loop that samples tokens, and Chat (chat.h) answers messages.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/status.h"
#include "kvcache/store.h"
#include "kvcache_engine/adapter.h"
#include "kvcache_engine/picture.h"

namespace kvcache {

// Types of the engine's sources. They are declared here, and defined in no public header.
class BatchDrafter;
class GgufFile;
class Model;
class PictureRows;
class PictureTower;
class PrefixStore;
class DraftModel;
class HiddenStates;
class Tokenizer;
struct ModelInfo;

struct EngineOptions {
  int threads = 0;  // of the CPU backend; 0: one per core
  // Spreads threads, weights and cells over the memory nodes of a machine that has several (CpuOptions::uses_numa).
  bool uses_numa = true;
  // Layers of the model that a GPU computes, the last ones; 0: none. With kAutoGpuLayers, if there is a GPU, as many as
  // its memory has room for. The results have the same bits. Unused if Open is given a backend.
  static constexpr int kAutoGpuLayers = -1;
  int gpu_layers = kAutoGpuLayers;
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int context = 0;  // tokens per sequence; 0: the model's own, at most kDefaultContext
  int max_sequences = 1;
  // Tokens of the pool that sequences and their prefixes share. 0: max_sequences × context, or with
  // `releases_memory` as many as pool_bytes hold, at most 4 Mi tokens and at least `context`. A token
  // takes memory once it was evaluated.
  int pool_tokens = 0;
  // Memory of the cache goes back to the system when a Scheduler releases it.
  bool releases_memory = false;
  // With `releases_memory`: the bytes that the pool is made for; 0: half of what the machine has free (memory_plan.h),
  // and of a GPU's memory. If that is unknown, or the model has no layer that keeps every token, the pool is
  // max_sequences × context.
  std::int64_t pool_bytes = 0;
  int prefill_chunk = 512;  // tokens of the largest forward pass
  // When states of recurrent layers are saved: a sequence of such a model can return to those
  // states.
  CheckpointOptions checkpoints{};
  // A GGUF file whose draft head is used too, the model's own file or another one; empty: none. The head's
  // keys and values are part of the cache (head_drafter.h).
  std::string draft_head{};
  // Adapters that sequences may have (Engine::SetAdapters). A sequence has none at first.
  std::vector<EngineAdapter> adapters{};
};

// The largest context that is chosen by default: a cache takes memory for all of it.
inline constexpr int kDefaultContext = 8192;

// An image: the output of a vision model, for the text model's layers that attend to images.
struct EngineImage {
  std::int32_t index = 0;  // batch index of its token, which is the first of its sequence there
  TensorView states;       // [hidden_size, any number], dense f32, host memory
  std::uint64_t hash = 0;  // of the image's content
};

// The tokens of one forward pass, in any order, of any sequences: three arrays [batch].
// Cache::AcceptDrafts says what drafts leave behind.
struct EngineBatch {
  std::span<const std::int32_t> tokens;
  std::span<const Position> positions;
  std::span<const SequenceId> sequences;
  std::span<const EngineImage> images{};
  std::span<const std::int32_t> parents{};  // [batch] or empty: drafts, as in Batch
  std::span<const InputRows> rows{};        // ascending by index, without overlap
  // [batch, 3] or empty: time, row and column of each token, by which a model with three axes (info().three_axes) rotates
  // it; empty: all three are its position.
  std::span<const Position> axes{};
  // Forward ends early, with kCancelled, once *interrupt is true; null: never.
  const std::atomic<bool>* interrupt = nullptr;
};

// The place of a text in its sequence.
enum class TextPlace : std::uint8_t {
  kBeginning,     // gets the begin-of-sequence token where the vocabulary has one
  kContinuation,  // gets none: other tokens come before it
};

class Engine {
 public:
  // Opens a GGUF file to run on `backend`; null: the CPU. Errors name the file and what is wrong
  // with it, or the option.
  static Result<std::unique_ptr<Engine>> Open(const std::string& path, const EngineOptions& options,
                                              std::unique_ptr<Backend> backend = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Returns one line on where the model is computed: the GPU, its layers and memory, or why there is no GPU; and the
  // processor's kernels and threads. Empty, if Open was given a backend.
  const std::string& machine() const;
  // Returns the options with defaults filled in.
  const EngineOptions& options() const;
  int context() const { return options().context; }
  int max_batch() const { return options().prefill_chunk; }
  // Returns the number of logits for each token.
  std::int32_t vocabulary_size() const;
  Cache& cache();
  // Returns the bytes of activations and logits that passes of the model and of its draft head take, at most,
  // those of states for the head, those of a draft model, and those of adapters that are held in memory.
  std::int64_t WorkspaceBytes() const;

  // Returns the token ids of `text`. Special tokens in the text are plain text. Errors:
  // kInvalidArgument: 2^30 bytes or more.
  Result<std::vector<std::int32_t>> Tokenize(std::string_view text,
                                             TextPlace place = TextPlace::kBeginning) const;

  // Returns the text of `tokens`; control tokens have none. Errors: kInvalidArgument: an id that is
  // not in the vocabulary, with its index.
  Result<std::string> Detokenize(std::span<const std::int32_t> tokens) const;

  // Lets prompts have pictures, with the tower of a projector file ("mmproj-NAME.gguf"). Errors name the file:
  // kUnsupported for a projector that is not offered, or a model that takes no pictures; kInvalidArgument for a tower of
  // another model, and if the engine has one.
  Status UseTower(const std::string& path);
  // Returns Ok if prompts may have pictures, else kUnsupported, with the reason.
  Status CheckTakesPictures() const;
  // Decodes a file of a picture and brings it to the tower's size. `name` begins messages ("picture 2"). From any
  // thread. Errors: that of CheckTakesPictures; kInvalidArgument, kUnsupported, kCorrupt for the file; kOutOfMemory.
  Result<PicturePtr> PreparePicture(std::span<const std::byte> file, std::string_view name) const;
  // Appends a picture to a prompt, with the tokens that the model has around one. From any thread. Errors:
  // that of CheckTakesPictures; kOutOfMemory.
  Status AddPicture(PicturePtr picture, PicturePrompt& prompt) const;

  // Returns what is around a picture in prompts and in chat templates; empty texts if prompts have no pictures.
  PictureMarks picture_marks() const;

  // Returns whether `token` ends an answer.
  bool IsEndOfGeneration(std::int32_t token) const;

  // Returns the adapters of the options, with what their files say.
  std::span<const AdapterInfo> adapters() const;
  // Returns the uses in the form of AdapterUses: sorted, without scales of 0. Errors: kInvalidArgument for a number that
  // no adapter has or that comes twice, and for a scale beyond kMaxAdapterScale.
  Result<std::vector<AdapterUse>> NormalAdapters(AdapterUses uses) const;
  // Says which adapters the tokens of an empty sequence have from now on: Forward adds them to the sequence's rows. A
  // Scheduler and a Session set them. Errors, which change nothing: those of NormalAdapters; kInvalidArgument for a
  // sequence that holds tokens with other adapters, or that the engine does not have; kOutOfMemory.
  Status SetAdapters(SequenceId sequence, AdapterUses uses);
  AdapterUses adapters_of(SequenceId sequence) const;
  // Returns the salt of texts with these adapters, for users with `salt`: `salt` itself without adapters. REQUIRES: the
  // uses are normal. Throws std::bad_alloc.
  std::uint64_t SaltOf(std::uint64_t salt, AdapterUses uses) const;

  // Runs one forward pass of at most max_batch() tokens. In a model with recurrent layers the tokens
  // of a sequence are side by side and ascending, unless they are drafts. Any other batch is refused
  // (kUnsupported) and not split, because Logits reads what one pass left. A token
  // attends to the image at or before it, up to the next image. An image's token must be the first
  // of its sequence in the pass: otherwise the tokens before it would attend to another image if
  // the text were split otherwise. Errors: a token that is not in the vocabulary; those of
  // Cache::StartForward and of the kernels. After an error in the pass itself (not before it) the
  // batch's sequences must be removed from their first position in the batch on.
  Status Forward(const EngineBatch& batch);

  // Returns whether the options named a draft head.
  bool has_draft_head() const;

  // Returns whether the model has an encoder, which reads a whole text first. A sequence of such a
  // model begins with Encode.
  bool has_encoder() const;

  // Runs the encoder on `tokens`, at most context() of them, for the empty sequence `sequence`, and
  // evaluates the decoder's first token at position 0. Errors as in Forward; kUnsupported without
  // an encoder.
  Status Encode(std::span<const std::int32_t> tokens, SequenceId sequence,
                const std::atomic<bool>* interrupt = nullptr);

  // Writes the logits [vocabulary_size(), rows.size()] of batch indices of the last Forward.
  Status Logits(std::span<const std::int32_t> rows, float* logits);

  // Has the requests of a Scheduler drafted by a smaller model with the same vocabulary
  // (SchedulerOptions::use_engine_drafts), which nobody else uses from now on. It needs as many sequences. Its
  // cache takes all of its memory at once, and WorkspaceBytes counts it. Errors: as MakeModelDrafter;
  // kInvalidArgument if it has fewer sequences, or if there is a draft model; kOutOfMemory, also if it takes more
  // than `max_bytes` (0: any number). REQUIRES: no Scheduler has the engine yet.
  Status UseDraftModel(std::shared_ptr<Engine> draft, std::int64_t max_bytes = 0);

  // Keeps the prefixes of chats and the outputs of an encoder in `store` from now on, and takes them from
  // there. Objects are written behind; the end of the engine waits for the last one. The first time that a
  // store sees the model's file, all of the file is read. Errors: kOutOfMemory.
  Status UseStore(std::shared_ptr<Store> store);
  // Returns when all objects are written, and why some were not stored since the last call; an empty text
  // if all were.
  std::string FlushStore();

  // For the engine's own sources, which know the types.
  PrefixStore* prefix_store();  // null without a store
  HiddenStates* states();       // null without a draft head
  DraftModel* draft_model();    // null without one
  Backend& backend();
  PictureRows* pictures();  // null without a tower
  const PictureRows* pictures() const;
  // As UseTower above. REQUIRES: there is no tower. Errors: those of the model; kInvalidArgument for rows of another size.
  Status UseTower(std::unique_ptr<PictureTower> tower);
  // Proposes for all drafters of the draft head. REQUIRES: has_draft_head(). Throws std::bad_alloc.
  BatchDrafter& head_batch();
  const GgufFile& file() const;
  const ModelInfo& info() const;
  const Tokenizer& tokenizer() const;
  Model& model();

 private:
  struct Impl;

  explicit Engine(std::unique_ptr<Impl> impl);

  // Evaluates a token, which gives all layers their memory, so that the cache knows what more tokens take.
  Status TouchLayers();
  // Open, once. Sets *gpu_layers to the layers that a GPU was given.
  static Result<std::unique_ptr<Engine>> OpenOver(const std::string& path,
                                                  const EngineOptions& options,
                                                  std::unique_ptr<Backend> backend,
                                                  int* gpu_layers);
  Status CheckTokens(std::span<const std::int32_t> tokens, std::span<const InputRows> rows) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcache
