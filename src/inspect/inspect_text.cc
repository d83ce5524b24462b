// Writes the text of `kvcache inspect` from the JSON description.
#include <algorithm>
#include <vector>

#include "base/strings.h"
#include "inspect/inspect.h"

namespace kvcache {
namespace {

using nlohmann::json;

// Strings of the file as printable text: no byte of it reaches a terminal as it is.
std::string Printable(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return Quoted(value.get_ref<const std::string&>(), 60);
  return value.dump();
}

std::string ArrayText(const json& value) {
  std::string text = StrCat(value["count"].get<std::uint64_t>(), " × ",
                            value["array"].get_ref<const std::string&>(), ": ");
  for (const json& element : value["first"]) text += Printable(element) + ", ";
  const bool all = value["first"].size() == value["count"].get<std::uint64_t>();
  if (!all) return text + "…";
  text.resize(text.size() - 2);
  return text;
}

std::string ValueText(const json& value) {
  return value.is_object() ? ArrayText(value) : Printable(value);
}

std::string Thousands(const json& number) {
  return WithThousands(number.get<std::int64_t>());
}

std::string Padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string Unquoted(const json& value) {
  const std::string text = Printable(value);
  return value.is_string() ? text.substr(1, text.size() - 2) : text;
}

std::string HeadText(const json& d) {
  return StrCat(Unquoted(d["path"]), "\n  ", Unquoted(d["architecture"]),
                d["supported"].get<bool>() ? "" : " (not supported)", ", ", Unquoted(d["name"]),
                "\n  ", Thousands(d["parameters"]), " parameters, ",
                HumanBytes(d["bytes"].get<std::int64_t>()), ", ",
                d["format"].get_ref<const std::string&>(), "\n");
}

// How positions are stretched, and the experts: what makes two files of one family differ.
std::string SettingsText(const json& d) {
  std::string text;
  for (const auto* const setting : {"rope", "experts"}) {
    if (d[setting].contains("error")) {
      text += StrCat("  ", d[setting]["error"].get_ref<const std::string&>(), "\n");
    }
  }
  const json& rope = d["rope"];
  if (rope.contains("scaling") && rope["scaling"] != "none") {
    text += StrCat("  positions stretched: ", rope["scaling"].get_ref<const std::string&>());
    if (rope["scaling"] != "llama3") text += StrCat(", ", rope["factor"].get<double>(), " times");
    text += StrCat(", first trained for ", Thousands(rope["original_context"]), "\n");
  }
  const json& experts = d["experts"];
  if (experts.contains("count")) {
    text += StrCat("  ", experts["count"].get<int>(), " experts of ", Thousands(experts["ffn"]),
                   ", ", experts["used"].get<int>(), " for each token\n");
  }
  return text;
}

// Layers that are alike but for their number.
bool SameLayer(json a, json b) {
  a.erase("layer");  // a number of its own; other kinds have other keys
  b.erase("layer");
  return a == b;
}

// "sliding, window 1,024, 2,048 kept", "recurrent, 98,304 bytes per sequence"
std::string LayerText(const json& layer) {
  std::string text = layer["kind"].get<std::string>();
  if (layer.contains("window")) {
    text += StrCat(", window ", Thousands(layer["window"]), ", ",
                   Thousands(layer["retained_tokens"]), " kept");
  }
  if (layer.contains("chunk")) text += StrCat(", chunk ", Thousands(layer["chunk"]));
  if (layer.contains("kv_heads")) {
    text +=
        StrCat(", ", layer["kv_heads"].get<int>(), " KV heads of ", layer["k_dim"].get<int>(),
               layer.contains("v_in_k") ? ", values within: " : " + ", layer["v_dim"].get<int>());
  }
  for (const auto* const per : {"token", "sequence"}) {
    const json& bytes = layer[StrCat("bytes_per_", per)];
    if (bytes != 0) text += StrCat(", ", Thousands(bytes), " bytes per layer and ", per);
  }
  return text;
}

// Layers that are alike in one line, however they are mixed.
std::string LayersText(const json& layers) {
  std::vector<std::pair<const json*, std::string>> kinds;
  for (const json& layer : layers) {
    auto kind =
        std::ranges::find_if(kinds, [&](const auto& k) { return SameLayer(*k.first, layer); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {&layer, ""});
    kind->second += StrCat(kind->second.empty() ? "" : " ", layer["layer"].get<int>());
  }
  std::string text;
  for (const auto& [layer, numbers] : kinds) {
    text += StrCat("  ", LayerText(*layer), "\n    layers ", numbers, "\n");
  }
  return text;
}

std::string CacheText(const json& cache) {
  if (cache.contains("error")) {
    return StrCat("\ncache\n  not known: ", OneLine(cache["error"].get_ref<const std::string&>()),
                  "\n");
  }
  const auto token = cache["bytes_per_token"].get<std::int64_t>();
  const auto sequence = cache["bytes_per_sequence"].get<std::int64_t>();
  std::string text = StrCat("\ncache, K in ", cache["k_type"].get_ref<const std::string&>(),
                            " and V in ", cache["v_type"].get_ref<const std::string&>(), "\n  ");
  text += StrCat(WithThousands(token), " bytes per token");
  if (sequence > 0) text += StrCat(", and ", HumanBytes(sequence), " for each sequence");
  if (token > 0) {
    const std::int64_t room = std::max<std::int64_t>((1ll << 30) - sequence, 0);
    text += StrCat("; 1 GiB holds ", WithThousands(room / token), " tokens");
  }
  return text + "\n" + LayersText(cache["layers"]);
}

std::string TokenizerText(const json& tokenizer) {
  if (tokenizer.is_null()) return "";
  if (tokenizer.contains("error")) {
    return StrCat("\ntokenizer\n  not known: ", tokenizer["error"].get_ref<const std::string&>(),
                  "\n");
  }
  std::string text =
      StrCat("\ntokenizer\n  ", tokenizer["description"].get_ref<const std::string&>(),
             tokenizer["add_bos"].get<bool>() ? "; bos in front" : "",
             tokenizer["add_eos"].get<bool>() ? "; eos at the end" : "", "\n");
  for (const json& note : tokenizer["notes"]) {
    text += StrCat("  ", note.get_ref<const std::string&>(), "\n");
  }
  return text;
}

std::string TypesText(const json& types) {
  std::string text = "\ntensors\n";
  for (const json& type : types) {
    text += StrCat("  ", Padded(type["type"].get<std::string>(), 8), "  ",
                   Thousands(type["tensors"]), " tensors, ", Thousands(type["parameters"]),
                   " parameters, ", HumanBytes(type["bytes"].get<std::int64_t>()),
                   type["served"].get<bool>() ? "" : " (type not supported)", "\n");
  }
  return text;
}

std::string TensorsText(const json& tensors) {
  std::string text;
  for (const json& tensor : tensors) {
    text += StrCat("  ", Padded(Unquoted(tensor["name"]), 32), "  ",
                   Padded(tensor["type"].get<std::string>(), 8), "  ", tensor["dims"].dump(), "\n");
  }
  return text;
}

std::string MetadataText(const json& metadata) {
  std::size_t width = 0;
  for (const auto& item : metadata.items()) width = std::max(width, item.key().size());
  std::string text = "\nmetadata\n";
  for (const auto& item : metadata.items()) {
    text += StrCat("  ", Padded(Unquoted(item.key()), std::min<std::size_t>(width, 48)), "  ",
                   ValueText(item.value()), "\n");
  }
  return text;
}

}  // namespace

std::string DescriptionText(const json& description, InspectDetail detail) {
  std::string text = HeadText(description) + SettingsText(description) +
                     CacheText(description["cache"]) + TokenizerText(description["tokenizer"]) +
                     MetadataText(description["metadata"]) + TypesText(description["types"]);
  if (detail == InspectDetail::kTensors) text += TensorsText(description["tensors"]);
  return text;
}

}  // namespace kvcache
