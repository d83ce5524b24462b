// Writes the text of `kvcache inspect` from the JSON description.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "inspect/inspect.h"

namespace kvcache {
namespace {

// Formats a number as JSON does; a string as printable text, so that none of its bytes can control
// a terminal.
std::string ElementText(const MetadataElement& element) {
  if (const auto* const text = std::get_if<std::string_view>(&element)) return Quoted(*text, 60);
  return std::visit([](const auto& value) { return nlohmann::json(value).dump(); }, element);
}

std::string ValueText(const MetadataValue& value) {
  if (!value.is_array) return ElementText(value.first[0]);
  std::string text = StrCat(value.count, " × ", GgufTypeName(value.element), ": ");
  for (const MetadataElement& element : value.first) text += ElementText(element) + ", ";
  if (value.first.size() < value.count) return text + "…";
  text.resize(text.size() - 2);
  return text;
}

std::string Padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// Returns `text` as printable text without quotes.
std::string Printable(std::string_view text) {
  const std::string quoted = Quoted(text, 60);
  return quoted.substr(1, quoted.size() - 2);
}

std::string PrintableOrDash(const std::optional<std::string_view>& text) {
  return text ? Printable(*text) : "-";
}

std::string HeadText(const ModelDescription& d) {
  return StrCat(Printable(d.path), "\n  ", PrintableOrDash(d.architecture),
                d.supported ? "" : " (not supported)", ", ", PrintableOrDash(d.name), "\n  ",
                WithThousands(d.parameters), " parameters, ",
                HumanBytes(static_cast<std::int64_t>(d.size_bytes)), ", GGUF ", d.version,
                d.files > 1 ? StrCat(", ", d.files, " files") : "", "\n");
}

std::string RopeText(const RopeSummary& rope) {
  if (rope.scaling == "none") return "";
  std::string text = StrCat("  positions stretched: ", rope.scaling);
  if (rope.scaling != "llama3") text += StrCat(", ", rope.factor, " times");
  return text + StrCat(", first trained for ", WithThousands(rope.original_context), "\n");
}

std::string ExpertsText(const ExpertParams& experts) {
  if (experts.count == 0) return "";
  return StrCat("  ", experts.count, " experts of ", WithThousands(experts.ffn), ", ", experts.used,
                " for each token\n");
}

// Describes the scaling of positions and the experts, in which files of one family differ.
std::string SettingsText(const ModelDescription& d) {
  std::string text;
  if (d.rope && !d.rope->ok()) text += StrCat("  ", d.rope->status().message(), "\n");
  if (d.experts && !d.experts->ok()) text += StrCat("  ", d.experts->status().message(), "\n");
  if (d.rope && d.rope->ok()) text += RopeText(**d.rope);
  if (d.experts && d.experts->ok()) text += ExpertsText(**d.experts);
  return text;
}

// Returns "recurrent, 98,304 bytes per layer and sequence" or the like.
std::string LayerText(const LayerMemory& layer, const CacheDescription& cache) {
  std::string text(NameOf(layer.kind));
  if (layer.kind == LayerMemory::Kind::kSliding) {
    text += StrCat(", window ", WithThousands(layer.window), ", ",
                   WithThousands(layer.retained_tokens), " kept");
  }
  if (layer.kind == LayerMemory::Kind::kChunked) {
    text += StrCat(", chunk ", WithThousands(layer.chunk));
  }
  if (layer.kind != LayerMemory::Kind::kRecurrent) {
    text += StrCat(", ", layer.kv.kv_heads, " KV heads of ", layer.kv.k_dim,
                   layer.kv.v_in_k ? ", values within: " : " + ", layer.kv.v_dim);
  }
  const std::int64_t token = BytesPerToken(layer, cache.k_type, cache.v_type);
  const std::int64_t sequence = BytesPerSequence(layer, cache.k_type, cache.v_type);
  if (token != 0) text += StrCat(", ", WithThousands(token), " bytes per layer and token");
  if (sequence != 0) text += StrCat(", ", WithThousands(sequence), " bytes per layer and sequence");
  return text;
}

// Lists equal layers together, even if other layers are between them.
std::string LayersText(const CacheDescription& cache) {
  std::vector<std::pair<std::string, std::string>> kinds;  // text, numbers of the layers
  for (const LayerMemory& layer : cache.layers) {
    std::string described = LayerText(layer, cache);
    auto kind = std::ranges::find(kinds, described, &std::pair<std::string, std::string>::first);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {std::move(described), ""});
    kind->second += StrCat(kind->second.empty() ? "" : " ", layer.layer);
  }
  std::string text;
  for (const auto& [described, numbers] : kinds) {
    text += StrCat("  ", described, "\n    layers ", numbers, "\n");
  }
  return text;
}

std::string CacheText(const Result<CacheDescription>& cache) {
  if (!cache.ok()) {
    return StrCat("\ncache\n  not known: ", OneLine(cache.status().message()), "\n");
  }
  if (cache->layers.empty()) return "\ncache\n  none: an encoder reads whole inputs\n";
  const std::int64_t token = BytesPerToken(cache->layers, cache->k_type, cache->v_type);
  const std::int64_t sequence = BytesPerSequence(cache->layers, cache->k_type, cache->v_type);
  std::string text = StrCat("\ncache, K in ", InfoOf(cache->k_type).name, " and V in ",
                            InfoOf(cache->v_type).name, "\n  ");
  text += StrCat(WithThousands(token), " bytes per token");
  if (sequence > 0) text += StrCat(", and ", HumanBytes(sequence), " for each sequence");
  if (token > 0) {
    const std::int64_t room = std::max<std::int64_t>((1ll << 30) - sequence, 0);
    text += StrCat("; 1 GiB holds ", WithThousands(room / token), " tokens");
  }
  return text + "\n" + LayersText(*cache);
}

std::string TokenizerText(const std::optional<Result<TokenizerDescription>>& tokenizer) {
  if (!tokenizer) return "";
  if (!tokenizer->ok()) {
    return StrCat("\ntokenizer\n  not known: ", tokenizer->status().message(), "\n");
  }
  const TokenizerDescription& made = **tokenizer;
  std::string text =
      StrCat("\ntokenizer\n  ", made.description, made.add_bos ? "; bos in front" : "",
             made.add_eos ? "; eos at the end" : "", "\n");
  for (const std::string& note : made.notes) text += StrCat("  ", note, "\n");
  return text;
}

std::string DialectText(const std::optional<Result<ChatDescription>>& chat) {
  if (!chat) return "";
  if (!chat->ok()) return StrCat("\nchat\n  not known: ", OneLine(chat->status().message()), "\n");
  const ChatDescription& made = **chat;
  return StrCat("\nchat\n  ", OneLine(made.format), ", dialect ", made.dialect, ": ",
                made.calls ? "calls tools" : "no calls of tools",
                made.thinks ? ", thinks" : ", no thoughts", "\n");
}

std::string TypesText(const std::vector<TypeTotal>& types) {
  std::string text = "\ntensors\n";
  for (const TypeTotal& total : types) {
    text += StrCat("  ", Padded(std::string(total.type->name), 8), "  ",
                   WithThousands(total.tensors), " tensors, ", WithThousands(total.parameters),
                   " parameters, ", HumanBytes(total.bytes),
                   total.type->dtype.has_value() ? "" : " (type not supported)", "\n");
  }
  return text;
}

std::string TensorsText(std::span<const GgufTensor> tensors) {
  std::string text;
  for (const GgufTensor& tensor : tensors) {
    std::string dims;
    for (int i = 0; i < tensor.rank; ++i) {
      dims += StrCat(dims.empty() ? "" : ",", tensor.dims[static_cast<std::size_t>(i)]);
    }
    text += StrCat("  ", Padded(Printable(tensor.name), 32), "  ",
                   Padded(std::string(tensor.type->name), 8), "  [", dims, "]\n");
  }
  return text;
}

std::string MetadataText(const std::vector<MetadataValue>& metadata) {
  std::size_t width = 0;
  for (const MetadataValue& value : metadata) width = std::max(width, value.key.size());
  std::string text = "\nmetadata\n";
  for (const MetadataValue& value : metadata) {
    text += StrCat("  ", Padded(Printable(value.key), std::min<std::size_t>(width, 48)), "  ",
                   ValueText(value), "\n");
  }
  return text;
}

}  // namespace

std::string DescriptionText(const ModelDescription& description, InspectDetail detail) {
  std::string text = HeadText(description) + SettingsText(description) +
                     CacheText(description.cache) + TokenizerText(description.tokenizer) +
                     DialectText(description.chat) + MetadataText(description.metadata) +
                     TypesText(description.types);
  if (detail == InspectDetail::kTensors) text += TensorsText(description.tensors);
  return text;
}

}  // namespace kvcache
