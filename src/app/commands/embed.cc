// kvcache embed and rerank: vectors of texts, and the order of documents for a query.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/commands/command.h"
#include "app/commands/input_lines.h"
#include "app/commands/json_report.h"
#include "app/flags/adapter_flags.h"
#include "app/flags/fetch_flags.h"
#include "app/flags/gpu_flags.h"
#include "app/flags/model_store.h"
#include "app/terminal/notes.h"
#include "app/terminal/shown_text.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"
#include "json/float_text.h"
#include "kvcache_engine/embedder.h"

namespace kvcache::app {
namespace {

constexpr std::size_t kInputsAtOnce = 256;  // of one call: between two, the progress is shown

// What both commands have.
struct EmbeddingFlags {
  std::string model;
  std::string file = "-";
  int threads = 0;
  bool uses_numa = true;
  int gpu_layers = EngineOptions::kAutoGpuLayers;
  int context = 0;
  bool refuses_long = false;
  bool reads_json = false;
  bool json = false;
  AdapterFlags adapters;
  FetchFlags fetch;

  void Add(FlagSet command, const char* file_help) {
    command.AddText("MODEL", &model, "a .gguf file, or a name that 'kvcache list' shows");
    command.AddText("-f,--file", &file, file_help).ValueName("FILE").ShowDefault();
    command.AddSwitch("--jsonl", &reads_json,
                      "each line of the file is JSON: a string, or an object with a \"text\"");
    command.AddNumber("--ctx", &context, "tokens of the longest input (default: the model's)")
        .Range(1, 1 << 28)
        .ValueName("N");
    command.AddNumber("--threads", &threads, "threads to compute with (default: one per core)")
        .Range(1, 1024)
        .ValueName("N");
    AddNuma(command, &uses_numa);
    AddGpuLayers(command, &gpu_layers);
    AddVerbose(command);
    command.AddSwitch("--no-truncate", &refuses_long,
                      "refuse an input that is too long, instead of leaving its end out");
    adapters.Add(command);
    fetch.Add(command);
  }

  LongInput when_long() const { return refuses_long ? LongInput::kRefuse : LongInput::kTruncate; }
  LineForm form() const { return reads_json ? LineForm::kJson : LineForm::kPlain; }
};

struct EmbedFlags : EmbeddingFlags {
  std::optional<std::string> prompt;
  int dimensions = 0;
  bool keeps_length = false;
};

struct RerankFlags : EmbeddingFlags {
  std::string query;
  int top = 0;
};

Result<std::unique_ptr<Embedder>> OpenEmbedder(EmbeddingFlags& flags) {
  KVCACHE_RETURN_IF_ERROR(flags.fetch.Fetch(flags.model));
  KVCACHE_ASSIGN_OR_RETURN(const FoundModel found, LocateModel(flags.model));
  if (found.stored) flags.adapters.SetDefault(found.stored->adapters);
  EmbedderOptions options{.threads = flags.threads,
                          .uses_numa = flags.uses_numa,
                          .gpu_layers = flags.gpu_layers,
                          .context = flags.context};
  KVCACHE_ASSIGN_OR_RETURN(options.adapters, LoadAdapters(flags.adapters.given(), found.path));
  KVCACHE_ASSIGN_OR_RETURN(auto embedder, Embedder::Open(found.path, options));
  AddDetail(embedder->machine());
  return embedder;
}

// Shows how far a command is.
class EmbeddingProgress {
 public:
  explicit EmbeddingProgress(std::size_t all) : all_(all) {}

  void Show(std::size_t done, std::int64_t tokens) {
    const double rate = static_cast<double>(tokens) / std::max(SecondsSince(start_), 1e-9);
    progress_.Show(StrCat(WithThousands(static_cast<std::int64_t>(done)), " of ",
                          WithThousands(static_cast<std::int64_t>(all_)), " inputs · ",
                          WithThousands(static_cast<std::int64_t>(rate)), " tokens/s"));
  }
  void Clear() { progress_.Clear(); }

 private:
  const std::size_t all_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Progress progress_;
};

Status Interruption(const Status& status, std::size_t done, std::size_t all) {
  if (status.code() != StatusCode::kCancelled) return status;
  return {StatusCode::kCancelled, StrCat("interrupted after ", done, " of ", all, " inputs")};
}

// Returns the member "line" of an input's object; empty: it is no line of a file.
std::string LineMember(const InputLine& input) {
  return input.line == 0 ? "" : StrCat(",\"line\":", input.line);
}

// Prints the vector of input `index`.
void PrintVector(const EmbedFlags& flags, std::size_t index, const InputLine& input,
                 std::size_t tokens, std::span<const float> vector) {
  if (flags.json) {
    (void)std::printf("{\"index\":%zu%s,\"tokens\":%zu,\"embedding\":%s}\n", index,
                      LineMember(input).c_str(), tokens, VectorText(vector).c_str());
    return;
  }
  std::string line;
  for (const float value : vector) line += (line.empty() ? "" : " ") + NumberText(value);
  (void)std::printf("%s\n", line.c_str());
}

Status Embed(EmbedFlags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(const auto embedder, OpenEmbedder(flags));
  std::vector<InputLine> texts;
  if (flags.prompt) {
    texts.push_back({.text = *flags.prompt});
  } else {
    KVCACHE_ASSIGN_OR_RETURN(texts, ReadInputLines(flags.file, flags.form()));
  }
  EmbedOptions options{.normalize = !flags.keeps_length,
                       .dimensions = flags.dimensions,
                       .adapters = flags.adapters.Uses(),
                       .interrupt = &CatchInterrupt()};
  EmbeddingProgress progress(texts.size());
  std::int64_t tokens = 0;
  for (std::size_t begin = 0; begin < texts.size(); begin += kInputsAtOnce) {
    const std::size_t end = std::min(begin + kInputsAtOnce, texts.size());
    std::vector<std::vector<std::int32_t>> inputs;
    for (std::size_t i = begin; i < end; ++i) {
      auto input = embedder->EncodeInput(texts[i].text, flags.when_long());
      if (!input.ok()) return std::move(input).TakeStatus().WithContext(StrCat("input ", i));
      inputs.push_back(std::move(*input));
    }
    options.first_input = begin;
    const auto result = embedder->Embed(inputs, options);
    if (!result.ok()) return Interruption(result.status(), begin, texts.size());
    progress.Clear();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      PrintVector(flags, begin + i, texts[begin + i], inputs[i].size(), result->vector(i));
    }
    tokens += result->tokens;
    if (end < texts.size()) progress.Show(end, tokens);
  }
  return Status::Ok();
}

void PrintRank(const RerankFlags& flags, std::size_t index, float score, const InputLine& input) {
  const std::string& text = input.text;
  if (flags.json) {
    (void)std::printf("{\"index\":%zu%s,\"relevance_score\":%s,\"text\":", index,
                      LineMember(input).c_str(), NumberText(score).c_str());
    (void)std::printf(
        "%s}\n",
        nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  (void)std::printf("%s\t%s\n", NumberText(score).c_str(), Shown(text).c_str());
}

Status Rerank(RerankFlags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(const auto embedder, OpenEmbedder(flags));
  if (!embedder->info().is_reranker) {
    return Unsupported(StrCat(Quoted(flags.model),
                              " is not made for ranks; 'kvcache embed' makes "
                              "vectors with it"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto documents, ReadInputLines(flags.file, flags.form()));
  EmbedOptions options{.adapters = flags.adapters.Uses(), .interrupt = &CatchInterrupt()};
  EmbeddingProgress progress(documents.size());
  std::vector<float> scores;
  std::int64_t tokens = 0;
  while (scores.size() < documents.size()) {
    const std::size_t begin = scores.size();
    const auto part =
        std::span(documents).subspan(begin, std::min(kInputsAtOnce, documents.size() - begin));
    std::vector<std::vector<std::int32_t>> pairs;
    for (std::size_t i = 0; i < part.size(); ++i) {
      auto pair = embedder->EncodePair(flags.query, part[i].text, flags.when_long());
      if (!pair.ok()) {
        return std::move(pair).TakeStatus().WithContext(StrCat("document ", begin + i));
      }
      pairs.push_back(std::move(*pair));
    }
    options.first_input = begin;
    const auto ranks = embedder->Rank(pairs, options);
    if (!ranks.ok()) return Interruption(ranks.status(), begin, documents.size());
    scores.insert(scores.end(), ranks->scores.begin(), ranks->scores.end());
    tokens += ranks->tokens;
    if (scores.size() < documents.size()) progress.Show(scores.size(), tokens);
  }
  progress.Clear();
  std::vector<std::size_t> order(documents.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  if (flags.top > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(flags.top)));
  for (const std::size_t index : order) PrintRank(flags, index, scores[index], documents[index]);
  return Status::Ok();
}

}  // namespace

Command AddEmbed(CommandLine& line) {
  FlagSet command = line.AddCommand("embed", "Turn texts into vectors");
  const auto flags = std::make_shared<EmbedFlags>();
  flags->Add(command, "a file of inputs, one a line; - is standard input");
  command.AddText("-p,--prompt", &flags->prompt, "the only input")
      .ValueName("TEXT")
      .Excludes(command.Find("--file"));
  command
      .AddNumber("--dimensions", &flags->dimensions,
                 "keep the first N values of each vector (default: all)")
      .Range(1, std::numeric_limits<int>::max())
      .ValueName("N");
  command.AddSwitch("--no-normalize", &flags->keeps_length,
                    "keep the vectors' lengths; otherwise each has length 1");
  command.AddSwitch("--json", &flags->json,
                    "print one JSON object per input instead of a line of numbers");
  command.RefuseEmptyValues({"--prompt"});
  command.CheckParsed([flags] {
    return flags->model.empty() ? InvalidArgument("MODEL is required") : Status::Ok();
  });
  return {"embed", [flags] { return Embed(*flags); }};
}

Command AddRerank(CommandLine& line) {
  FlagSet command = line.AddCommand("rerank", "Sort documents by their relevance for a query");
  const auto flags = std::make_shared<RerankFlags>();
  flags->Add(command, "a file of documents, one a line; - is standard input");
  command.AddText("--query", &flags->query, "the query").ValueName("TEXT");
  command.AddNumber("--top", &flags->top, "print the N most relevant documents (default: all)")
      .Range(1, std::numeric_limits<int>::max())
      .ValueName("N");
  command.AddSwitch("--json", &flags->json,
                    "print one JSON object per document instead of a score and the text");
  command.RefuseEmptyValues({});
  command.CheckParsed([flags] {
    if (flags->model.empty()) return InvalidArgument("MODEL is required");
    return flags->query.empty() ? InvalidArgument("--query is required") : Status::Ok();
  });
  return {"rerank", [flags] { return Rerank(*flags); }};
}

}  // namespace kvcache::app
