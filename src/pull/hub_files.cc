#include "pull/hub_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/split_file.h"
#include "model_store/manifest.h"

namespace kvcache::pull {
namespace {

constexpr std::string_view kSuffix = ".gguf";
// Without a quantization: the first that there is. Smaller ones lose too much, larger ones come last.
constexpr std::array<std::string_view, 12> kUsual = {"q4_k_m", "q4_k_s", "q4_0", "q5_k_m",
                                                     "q5_k_s", "q6_k",   "q8_0", "mxfp4",
                                                     "iq4_xs", "bf16",   "f16",  "f32"};

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower;
}

std::string_view NameOf(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

bool IsWordEnd(char c) {
  return c == '-' || c == '.' || c == '/' || c == '_' || c == ' ';
}

// Returns whether `text` has `word`, in any case, between ends of words. "_" ends no word: a longer
// quantization, Q4_K_M, does not have a shorter one, Q4_K, as a word.
bool HasWord(std::string_view text, std::string_view word) {
  const std::string in = Lower(text);
  const std::string wanted = Lower(word);
  for (std::size_t at = in.find(wanted); at != std::string::npos; at = in.find(wanted, at + 1)) {
    const std::size_t end = at + wanted.size();
    const bool begins = at == 0 || IsWordEnd(in[at - 1]);
    const bool ends = end == in.size() || (IsWordEnd(in[end]) && in[end] != '_');
    if (begins && ends) return true;
  }
  return false;
}

// A model of the repository: one file, or the parts of a split one.
struct Candidate {
  std::string name;  // the path without its end and the number of a part
  std::vector<HubFile> parts;
  int count = 1;
};

std::vector<Candidate> CandidatesOf(const std::vector<HubFile>& files) {
  std::map<std::string, Candidate> found;
  for (const HubFile& file : files) {
    const auto split = ParseSplitName(file.path);
    const std::string name =
        split ? split->prefix : file.path.substr(0, file.path.size() - kSuffix.size());
    Candidate& candidate = found[StrCat(name, split ? StrCat("*", split->count) : "")];
    candidate.name = name;
    candidate.count = split ? split->count : 1;
    candidate.parts.push_back(file);
  }
  std::vector<Candidate> candidates;
  for (auto& [key, candidate] : found) {
    std::sort(candidate.parts.begin(), candidate.parts.end(),
              [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

std::string NamesOf(const std::vector<Candidate>& candidates) {
  std::string names;
  for (const Candidate& candidate : candidates) {
    if (names.size() > 300) return names + ", …";
    names += StrCat(names.empty() ? "" : ", ", OneLine(candidate.name));
  }
  return names;
}

// Returns those that have the word in their file's name; if there are none, in their folder's.
std::vector<const Candidate*> WithWord(const std::vector<Candidate>& candidates,
                                       std::string_view word) {
  std::vector<const Candidate*> found;
  for (const bool in_folder : {false, true}) {
    for (const Candidate& one : candidates) {
      const std::string_view text = in_folder ? std::string_view(one.name) : NameOf(one.name);
      if (HasWord(text, word)) found.push_back(&one);
    }
    if (!found.empty()) break;
  }
  return found;
}

// Returns the one with the shortest name, the plainest; nullptr: there is none, or there are two.
const Candidate* Plainest(const std::vector<const Candidate*>& found) {
  const Candidate* best = nullptr;
  bool is_alone = false;
  for (const Candidate* one : found) {
    if (best != nullptr && one->name.size() == best->name.size()) is_alone = false;
    if (best != nullptr && one->name.size() >= best->name.size()) continue;
    best = one;
    is_alone = true;
  }
  return is_alone ? best : nullptr;
}

Result<std::vector<HubFile>> Whole(const Candidate& candidate) {
  if (static_cast<std::size_t>(candidate.count) > kMaxManifestLayers) {
    return Unsupported(StrCat("the model has ", candidate.count, " files; at most ",
                              kMaxManifestLayers, " are read"));
  }
  std::set<std::string_view> paths;
  for (const HubFile& file : candidate.parts) {
    if (paths.insert(file.path).second) continue;
    return Corrupt(StrCat("its file ", Quoted(file.path), " is listed twice"));
  }
  for (int part = 1; part <= candidate.count && candidate.count > 1; ++part) {
    const std::string path = SplitName{candidate.name, part, candidate.count}.Path(part);
    if (paths.contains(path)) continue;
    return Corrupt(
        StrCat("its file ", Quoted(path), " is missing: part ", part, " of ", candidate.count));
  }
  return candidate.parts;
}

Result<const Candidate*> ChooseWeights(const std::vector<Candidate>& candidates,
                                       std::string_view tag) {
  if (candidates.empty()) return NotFound("it has no .gguf file with weights");
  if (tag == "latest") {
    if (candidates.size() == 1) return &candidates.front();
    for (const std::string_view usual : kUsual) {
      const Candidate* const one = Plainest(WithWord(candidates, usual));
      if (one != nullptr) return one;
    }
    return Unsupported(StrCat("name a quantization after ':'; it has ", NamesOf(candidates)));
  }
  const auto found = WithWord(candidates, tag);
  if (found.empty()) {
    return NotFound(
        StrCat("no file of it has the tag ", Quoted(tag), "; it has ", NamesOf(candidates)));
  }
  const Candidate* const one = Plainest(found);
  if (one != nullptr) return one;
  return Unsupported(
      StrCat("several files of it have the tag ", Quoted(tag), ": ", NamesOf(candidates)));
}

bool IsDraft(std::string_view name) {
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', '-');
  return HasWord(words, "draft");
}

const HubFile* ChooseProjector(const std::vector<HubFile>& projectors) {
  for (const std::string_view type : {"f16", "bf16", "q8_0", ""}) {
    for (const HubFile& file : projectors) {
      if (type.empty() || HasWord(NameOf(file.path), type)) return &file;
    }
  }
  return nullptr;
}

}  // namespace

bool IsGgufPath(std::string_view path) {
  return Lower(path).ends_with(kSuffix);
}

Result<ChosenFiles> ChooseFiles(const std::vector<HubFile>& files, std::string_view tag) {
  std::vector<HubFile> weights;
  std::vector<HubFile> drafts;
  std::vector<HubFile> projectors;
  for (const HubFile& file : files) {
    const std::string lower = Lower(file.path);
    if (!IsGgufPath(file.path) || HasWord(NameOf(lower), "imatrix")) continue;
    const std::string_view name = NameOf(lower);
    auto& list = name.find("mmproj") != std::string_view::npos ? projectors
                 : IsDraft(name)                               ? drafts
                                                               : weights;
    list.push_back(file);
  }
  ChosenFiles chosen;
  const std::vector<Candidate> candidates = CandidatesOf(weights);
  KVCACHE_ASSIGN_OR_RETURN(const Candidate* model, ChooseWeights(candidates, tag));
  KVCACHE_ASSIGN_OR_RETURN(chosen.weights, Whole(*model));
  const std::vector<Candidate> others = CandidatesOf(drafts);
  auto draft = ChooseWeights(others, tag);
  if (!draft.ok()) draft = ChooseWeights(others, "latest");
  if (draft.ok()) {
    KVCACHE_ASSIGN_OR_RETURN(chosen.draft, Whole(**draft));
  }
  const HubFile* const projector = ChooseProjector(projectors);
  if (projector != nullptr) chosen.projector = *projector;
  return chosen;
}

}  // namespace kvcache::pull
