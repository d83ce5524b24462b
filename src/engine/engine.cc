#include "kvcache_engine/engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/step_parts.h"
#include "base/strings.h"
#include "engine/adapters.h"
#include "engine/drafts/draft_model.h"
#include "engine/drafts/head_batch.h"
#include "engine/engine_impl.h"
#include "engine/gpu/gpu_backend.h"
#include "engine/memory_plan.h"
#include "engine/packed/packed_weights.h"
#include "engine/persist/prefix_store.h"
#include "engine/pictures/batch_rows.h"
#include "engine/pictures/check_tower.h"
#include "engine/pictures/picture_rows.h"
#include "engine/prefixes/hidden_states.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/drafter.h"
#include "model/layer_memory.h"

namespace kvcache {

struct Engine::Impl {
  EngineOptions options;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<GgufFile> head_file;  // of a draft head that is not in `file`
  std::string machine;
  std::shared_ptr<packed::ModelPanels> panels;  // null: none are kept
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  std::unique_ptr<Cache> cache;
  std::vector<MultimodalItem> items;      // scratch
  std::vector<std::int32_t> not_causal;   // scratch: batch indices
  std::unique_ptr<PictureRows> pictures;  // null without a tower
  std::unique_ptr<PrefixStore> prefix_store;
  std::unique_ptr<HiddenStates> states;      // for a draft head; null without one
  std::unique_ptr<BatchDrafter> head_batch;  // null until a drafter of the head is made
  std::unique_ptr<DraftModel> draft_model;
  EngineAdapters adapters;

  // Takes the weights, packed ones if there are any, and the head that the options name.
  Status LoadWeights(const std::string& path);
  Status LoadHead(const std::string& path);
};

Status Engine::Impl::LoadWeights(const std::string& path) {
  PackedLoad load(*file, *backend);
  KVCACHE_ASSIGN_OR_RETURN(model, LoadModel(*file, *backend));
  KVCACHE_RETURN_IF_ERROR(LoadHead(path));
  panels = load.Finish();
  return Status::Ok();
}

Status Engine::Impl::LoadHead(const std::string& path) {
  if (options.draft_head.empty()) return Status::Ok();
  if (options.draft_head != path) {
    KVCACHE_ASSIGN_OR_RETURN(head_file, GgufFile::Open(options.draft_head));
  }
  return model->LoadHead(head_file ? *head_file : *file).WithContext(options.draft_head);
}

namespace {

// The metadata of a cell takes memory whether the cell is used or not.
constexpr std::int64_t kMaxPoolTokens = std::int64_t{1} << 22;

Status CheckOptions(const EngineOptions& options) {
  if (options.context < 0) {
    return InvalidArgument(
        StrCat("the context is ", options.context, " tokens, expected at least 1"));
  }
  if (options.pool_tokens < 0) {
    return InvalidArgument(
        StrCat("the pool has ", options.pool_tokens, " tokens, expected at least 1"));
  }
  if (options.pool_bytes < 0) {
    return InvalidArgument(
        StrCat("the pool has ", options.pool_bytes, " bytes, expected at least 0"));
  }
  if (options.prefill_chunk < 1) {
    return InvalidArgument(
        StrCat("the prefill chunk is ", options.prefill_chunk, " tokens, expected at least 1"));
  }
  return Status::Ok();
}

// Returns the bytes of all sequences that do not depend on their tokens.
std::int64_t FixedBytes(const EngineOptions& options, std::span<const LayerMemory> layers) {
  std::int64_t bytes = BytesPerSequence(layers, options.k_type, options.v_type);
  for (const LayerMemory& layer : layers) {
    if (layer.kind != LayerMemory::Kind::kCross) continue;
    const LayerKv output{.shape = layer.kv,
                         .k_type = options.k_type,
                         .v_type = options.v_type,
                         .cells = options.context};
    bytes += output.KBytes() + output.VBytes();
  }
  return bytes * std::max(options.max_sequences, 1);
}

// The tokens of a pool that gives its memory back: it is made for bytes, whoever uses them.
int TokensOfPool(const EngineOptions& options, std::span<const LayerMemory> layers) {
  const std::int64_t token = BytesPerToken(layers, options.k_type, options.v_type);
  const std::int64_t bytes = options.pool_bytes > 0 ? options.pool_bytes : MemoryPlan().PoolBytes();
  if (token == 0 || bytes == 0) return 0;
  const std::int64_t tokens =
      std::max<std::int64_t>(bytes - FixedBytes(options, layers), 0) / token;
  return static_cast<int>(
      std::max<std::int64_t>(std::min(tokens, kMaxPoolTokens), options.context));
}

// The same where a GPU has the last layers. Without a number of bytes, each machine's memory has its own bound.
int TokensOfPool(const EngineOptions& options, const ModelInfo& info, const GpuPlan& gpu) {
  if (gpu.layers == 0 || options.pool_bytes > 0) return TokensOfPool(options, info.memory);
  std::vector<LayerMemory> of_host;
  for (const LayerMemory& memory : info.memory) {
    if (memory.layer < info.layers - gpu.layers) of_host.push_back(memory);
  }
  const std::int64_t wanted = std::int64_t{options.context} * std::max(options.max_sequences, 1);
  const std::int64_t tokens = PoolTokens(gpu, wanted, TokensOfPool(options, of_host));
  return static_cast<int>(std::min(tokens, kMaxPoolTokens));
}

// What a GPU's memory must have room for.
BackendWants WantsOf(const EngineOptions& options) {
  return {.threads = options.threads,
          .uses_numa = options.uses_numa,
          .gpu_layers = options.gpu_layers,
          .cache = {.k_type = options.k_type,
                    .v_type = options.v_type,
                    .context = options.context,
                    .sequences = std::max(options.max_sequences, 1),
                    .prefill_chunk = options.prefill_chunk},
          .draft_head = options.draft_head,
          .adapters = options.adapters};
}

Status CheckImages(const EngineBatch& batch) {
  for (const EngineImage& image : batch.images) {
    const auto at = static_cast<std::size_t>(image.index);
    if (image.index < 0 || at >= batch.sequences.size() || at >= batch.positions.size()) {
      return InvalidArgument(
          StrCat("an image is at index ", image.index, " of a batch of ", batch.tokens.size()));
    }
    for (std::size_t i = 0; i < std::min(batch.sequences.size(), batch.positions.size()); ++i) {
      if (batch.sequences[i] != batch.sequences[at] || batch.positions[i] >= batch.positions[at]) {
        continue;
      }
      return {
          StatusCode::kInvalidArgument,
          StrCat("an image is at position ", batch.positions[at], " but its sequence begins at ",
                 batch.positions[i], " in this pass; begin a pass at the image")};
    }
  }
  return Status::Ok();
}

}  // namespace

// A plan of a GPU's memory is an estimate. If it was too high, fewer layers are tried, and the machine's line says so.
Result<std::unique_ptr<Engine>> Engine::Open(const std::string& path, const EngineOptions& options,
                                             std::unique_ptr<Backend> backend) {
  const bool is_free = backend == nullptr && options.gpu_layers == EngineOptions::kAutoGpuLayers;
  int gpu_layers = 0;
  auto engine = OpenOver(path, options, std::move(backend), &gpu_layers);
  EngineOptions fewer = options;
  while (is_free && !engine.ok() && engine.status().code() == StatusCode::kOutOfMemory &&
         gpu_layers > 0) {
    fewer.gpu_layers = gpu_layers * 3 / 4;
    auto next = OpenOver(path, fewer, nullptr, &gpu_layers);
    gpu_layers = fewer.gpu_layers;
    if (next.ok()) {
      (*next)->impl_->machine +=
          StrCat("; with more layers on the GPU: ", engine.status().message());
    }
    engine = std::move(next);
  }
  return engine;
}

Result<std::unique_ptr<Engine>> Engine::OpenOver(const std::string& path,
                                                 const EngineOptions& options,
                                                 std::unique_ptr<Backend> backend,
                                                 int* gpu_layers) {
  KVCACHE_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  KVCACHE_ASSIGN_OR_RETURN(impl->file, GgufFile::Open(path));
  if (IsTextEncoder(*impl->file)) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string_view architecture,
                             impl->file->GetString("general.architecture"));
    return Unsupported(
        StrCat(path, ": architecture '", architecture,
               "' is an encoder, which generates no text; 'kvcache embed' makes embeddings "
               "and scores with it"));
  }
  BackendChoice choice;
  const bool is_chosen = backend == nullptr;
  impl->backend = std::move(backend);
  if (is_chosen) {
    KVCACHE_ASSIGN_OR_RETURN(choice, ChooseBackend(*impl->file, WantsOf(options)));
    impl->backend = std::move(choice.backend);
    *gpu_layers = choice.plan.layers;
  }
  const GpuPlan& gpu = choice.plan;
  KVCACHE_RETURN_IF_ERROR(impl->LoadWeights(path));
  KVCACHE_RETURN_IF_ERROR(impl->adapters.Open(options.adapters, *impl->model));
  KVCACHE_RETURN_IF_ERROR(
      CheckCacheTypes(impl->model->info().memory, options.k_type, options.v_type)
          .WithContext(path));
  auto tokenizer = MakeTokenizer(*impl->file);
  if (!tokenizer.ok()) return std::move(tokenizer).TakeStatus().WithContext(path);
  impl->tokenizer = std::move(tokenizer).value();
  KVCACHE_RETURN_IF_ERROR(
      CheckTokenCount(impl->model->info(), impl->tokenizer->vocabulary_size()).WithContext(path));

  EngineOptions& chosen = impl->options;
  if (chosen.context == 0) {
    chosen.context = std::min(impl->model->info().context_length, kDefaultContext);
  }
  if (chosen.releases_memory && chosen.pool_tokens == 0) {
    chosen.pool_tokens = TokensOfPool(chosen, impl->model->info(), gpu);
  }
  std::int64_t cells = std::int64_t{chosen.context} * std::max(chosen.max_sequences, 1);
  if (chosen.pool_tokens > 0) cells = chosen.pool_tokens;
  // A GPU's memory does not go back piece by piece, so a pool that it has a part of is fixed.
  if (gpu.layers > 0) chosen.releases_memory = false;
  if (gpu.layers > 0 && cells > gpu.pool_tokens) {
    cells = gpu.pool_tokens;  // sequences share what there is
    chosen.pool_tokens = static_cast<int>(cells);
  }
  if (is_chosen) impl->machine = MachineLine(choice, gpu.layers > 0 ? cells : 0);
  chosen.prefill_chunk = static_cast<int>(std::min<std::int64_t>(chosen.prefill_chunk, cells));
  impl->cache = impl->model->MakeCache();
  if (RecurrentCache* const states = impl->cache->Recurrent(); states != nullptr) {
    KVCACHE_RETURN_IF_ERROR(states->SetCheckpoints(chosen.checkpoints));
  }
  KVCACHE_RETURN_IF_ERROR(
      impl->cache->Init(*impl->backend, {.k_type = chosen.k_type,
                                         .v_type = chosen.v_type,
                                         .max_sequences = chosen.max_sequences,
                                         .capacity = chosen.context,
                                         .max_batch = chosen.prefill_chunk,
                                         .cells = chosen.pool_tokens,
                                         .releases_memory = chosen.releases_memory}));
  if (chosen.releases_memory) impl->cache->snapshots()->LimitSpareBytes(0);
  KVCACHE_RETURN_IF_ERROR(impl->model->Reserve(chosen.prefill_chunk));
  KVCACHE_RETURN_IF_ERROR(
      impl->adapters.Reserve(std::max(chosen.max_sequences, 1), chosen.prefill_chunk));
  if (impl->model->has_head()) {
    KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the states that a draft head reads", [&] {
      impl->states = std::make_unique<HiddenStates>(
          std::max(chosen.max_sequences, 1), impl->model->info().hidden_size, chosen.prefill_chunk);
    }));
  }
  std::unique_ptr<Engine> engine(new Engine(std::move(impl)));
  if (engine->options().releases_memory) {
    KVCACHE_RETURN_IF_ERROR(engine->model().ReserveText(engine->context()));
    KVCACHE_RETURN_IF_ERROR(engine->TouchLayers());
  }
  return engine;
}

Status Engine::TouchLayers() {
  const std::int32_t token[] = {0};
  const Position position[] = {0};
  const SequenceId sequence[] = {SequenceId{0}};
  KVCACHE_RETURN_IF_ERROR(
      has_encoder() ? Encode(token, sequence[0])
                    : Forward({.tokens = token, .positions = position, .sequences = sequence}));
  KVCACHE_RETURN_IF_ERROR(cache().Remove(sequence[0], 0, kEndOfSequence));
  return cache().memory()->ReleaseFreeMemory();
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const EngineOptions& Engine::options() const {
  return impl_->options;
}
const std::string& Engine::machine() const {
  return impl_->machine;
}
std::int64_t Engine::WorkspaceBytes() const {
  const Model& model = *impl_->model;
  const std::int64_t rows = std::max(options().max_sequences, 1);
  std::int64_t values = rows * vocabulary_size();
  if (model.has_head()) {
    const auto logits =
        model.head_tokens().empty() ? vocabulary_size() : std::ssize(model.head_tokens());
    values += std::min<std::int64_t>(rows, Model::kMaxDraftRows) * (logits + info().hidden_size);
  }
  return model.ActivationBytes() + (impl_->states ? impl_->states->bytes() : 0) +
         (impl_->draft_model ? impl_->draft_model->bytes() : 0) + impl_->adapters.HeldBytes() +
         values * static_cast<std::int64_t>(sizeof(float));
}
std::int32_t Engine::vocabulary_size() const {
  return info().vocabulary;
}
Cache& Engine::cache() {
  return *impl_->cache;
}
Status Engine::UseStore(std::shared_ptr<Store> store) {
  KVCACHE_ASSIGN_OR_RETURN(impl_->prefix_store, PrefixStore::Make(*this, std::move(store)));
  return Status::Ok();
}
Status Engine::UseDraftModel(std::shared_ptr<Engine> draft, std::int64_t max_bytes) {
  if (impl_->draft_model != nullptr) {
    return InvalidArgument("the engine has a draft model");
  }
  return Guarded("no memory for the sequences of a draft model", [&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(impl_->draft_model,
                             DraftModel::Make(std::move(draft), *this, max_bytes));
    return Status::Ok();
  });
}
DraftModel* Engine::draft_model() {
  return impl_->draft_model.get();
}
std::string Engine::FlushStore() {
  if (impl_->prefix_store == nullptr) return {};
  impl_->prefix_store->Flush();
  return impl_->prefix_store->TakeProblem();
}
PrefixStore* Engine::prefix_store() {
  return impl_->prefix_store.get();
}
const GgufFile& Engine::file() const {
  return *impl_->file;
}
const ModelInfo& Engine::info() const {
  return impl_->model->info();
}
const Tokenizer& Engine::tokenizer() const {
  return *impl_->tokenizer;
}
Model& Engine::model() {
  return *impl_->model;
}
bool Engine::has_draft_head() const {
  return impl_->model->has_head();
}
HiddenStates* Engine::states() {
  return impl_->states.get();
}
BatchDrafter& Engine::head_batch() {
  if (impl_->head_batch == nullptr) impl_->head_batch = MakeHeadBatch(*this);
  return *impl_->head_batch;
}
Status Engine::UseTower(std::unique_ptr<PictureTower> tower) {
  KVCACHE_RETURN_IF_ERROR(CheckTower(*this, *tower));
  return Guarded("no memory for a tower",
                 [&] { impl_->pictures = std::make_unique<PictureRows>(std::move(tower)); });
}
Backend& Engine::backend() {
  return *impl_->backend;
}
PictureRows* Engine::pictures() {
  return impl_->pictures.get();
}
const PictureRows* Engine::pictures() const {
  return impl_->pictures.get();
}
std::span<const AdapterInfo> Engine::adapters() const {
  return impl_->adapters.infos();
}
Result<std::vector<AdapterUse>> Engine::NormalAdapters(AdapterUses uses) const {
  return impl_->adapters.Normal(uses);
}
Status Engine::SetAdapters(SequenceId sequence, AdapterUses uses) {
  if (const Position held = cache().Length(sequence); held > 0 && !adapters().empty()) {
    KVCACHE_ASSIGN_OR_RETURN(const auto normal, NormalAdapters(uses));
    if (std::ranges::equal(normal, adapters_of(sequence))) return Status::Ok();
    return InvalidArgument(StrCat("sequence ", Index(sequence), " holds ", held,
                                  " tokens; adapters are for all of a text"));
  }
  return impl_->adapters.Set(sequence, uses);
}
AdapterUses Engine::adapters_of(SequenceId sequence) const {
  return impl_->adapters.Of(sequence);
}
std::uint64_t Engine::SaltOf(std::uint64_t salt, AdapterUses uses) const {
  return impl_->adapters.SaltOf(salt, uses);
}
bool Engine::has_encoder() const {
  return info().decoder_start >= 0;
}

Result<std::vector<std::int32_t>> Engine::Tokenize(std::string_view text, TextPlace place) const {
  EncodeOptions options;
  if (place == TextPlace::kContinuation) options.add_bos = AddToken::kNo;
  return tokenizer().Encode(text, options);
}

Result<std::string> Engine::Detokenize(std::span<const std::int32_t> tokens) const {
  return tokenizer().Decode(tokens);
}

bool Engine::IsEndOfGeneration(std::int32_t token) const {
  return tokenizer().IsEndOfGeneration(token);
}

Status Engine::Logits(std::span<const std::int32_t> rows, float* logits) {
  return impl_->model->Logits(rows, logits);
}

Status Engine::CheckTokens(std::span<const std::int32_t> tokens,
                           std::span<const InputRows> rows) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!rows.empty() && static_cast<std::size_t>(rows.front().index) == i) {
      i += static_cast<std::size_t>(rows.front().count) - 1;
      rows = rows.subspan(1);
      continue;
    }
    const std::int32_t token = tokens[i];
    if (token >= 0 && token < info().embedding_rows) continue;
    return InvalidArgument(
        StrCat("token ", token, " is not in the vocabulary of ", info().embedding_rows));
  }
  return Status::Ok();
}

Status Engine::Encode(std::span<const std::int32_t> tokens, SequenceId sequence,
                      const std::atomic<bool>* interrupt) {
  impl_->model->SetInterrupt(interrupt);
  KVCACHE_RETURN_IF_ERROR(CheckTokens(tokens, {}));
  if (has_encoder() && tokens.size() > static_cast<std::size_t>(context())) {
    return CacheFull(StrCat(tokens.size(), " tokens do not fit into the context of ", context()));
  }
  const std::int32_t start[] = {info().decoder_start};
  const Position positions[] = {0};
  const SequenceId sequences[] = {sequence};
  KVCACHE_RETURN_IF_ERROR(impl_->cache->StartForward(
      {.positions = positions, .sequences = sequences, .items = {}}, ForwardMode::kCompute));
  KVCACHE_RETURN_IF_ERROR(impl_->model->Encode(tokens, sequence, *impl_->cache));
  return impl_->model->Forward(start, positions, *impl_->cache);
}

Status Engine::Forward(const EngineBatch& batch) {
  const StepScope scope(StepPart::kCells);
  impl_->model->SetInterrupt(batch.interrupt);
  if (!batch.rows.empty()) KVCACHE_RETURN_IF_ERROR(CheckInputRows(batch));
  KVCACHE_RETURN_IF_ERROR(CheckTokens(batch.tokens, batch.rows));
  KVCACHE_RETURN_IF_ERROR(CheckImages(batch));
  impl_->items.clear();
  for (const EngineImage& image : batch.images) impl_->items.push_back({image.index, image.hash});
  KVCACHE_RETURN_IF_ERROR(impl_->cache->StartForward({.positions = batch.positions,
                                                      .sequences = batch.sequences,
                                                      .items = impl_->items,
                                                      .parents = batch.parents},
                                                     ForwardMode::kCompute));
  for (const EngineImage& image : batch.images) {
    const SequenceId sequence = batch.sequences[static_cast<std::size_t>(image.index)];
    KVCACHE_RETURN_IF_ERROR(impl_->model->EncodeStates(image.states, sequence, *impl_->cache));
  }
  if (!batch.rows.empty()) {
    KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the indices of a picture's tokens", [&] {
      TokensThatSeeEachOther(batch.rows, impl_->not_causal);
      return impl_->cache->SetCausal(impl_->not_causal);
    }));
  }
  impl_->model->SetInputRows(batch.rows);
  impl_->model->SetAxes(info().three_axes ? batch.axes : std::span<const Position>());
  impl_->model->SetAdapters(impl_->adapters.OfTokens(batch.sequences));
  HiddenStates* const states = impl_->states.get();
  if (states != nullptr) impl_->model->SetPrevious(states->Before(batch));
  // A plan of attention allocates: drafts may need a larger one than texts.
  return Guarded("no memory for a pass", [&] {
    const StepScope kernels(StepPart::kKernels);
    Status status = impl_->model->Forward(batch.tokens, batch.positions, *impl_->cache);
    return status.ok() && states != nullptr ? states->Keep(batch, *impl_->model) : status;
  });
}

}  // namespace kvcache
