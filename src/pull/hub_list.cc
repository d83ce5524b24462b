#include "pull/hub_list.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/manifest.h"

namespace kvcache::pull {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;

// Returns whether a path has parts that lead elsewhere in an address.
bool LeavesItsFolder(std::string_view path) {
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return true;
    begin = end + 1;
  }
  return false;
}

// Reads the values as they come, so that no tree of them is in memory. A function returns whether the parse goes on.
class ListReader final : public json::json_sax_t {
 public:
  Result<HubList> Take() {
    if (!error_.ok()) return error_;
    if (!is_object_) return Corrupt("the answer is not a JSON object");
    if (!has_list_) return Corrupt("it has no list of files");
    return std::move(list_);
  }

  bool null() override { return Value(); }
  bool boolean(bool /*value*/) override { return Value(); }
  bool number_integer(json::number_integer_t /*value*/) override { return Value(); }
  bool number_float(json::number_float_t /*value*/, const std::string& /*text*/) override {
    return Value();
  }
  bool binary(json::binary_t& /*value*/) override { return Value(); }

  bool number_unsigned(json::number_unsigned_t value) override {
    if (place() == Place::kFile && key_ == "size" && !is_large_) file_.bytes = value;
    if (place() == Place::kLarge && key_ == "size") file_.bytes = value;
    return Value();
  }

  bool string(std::string& value) override {
    std::string* const kept = KeptText();
    if (kept != nullptr) *kept = std::move(value);
    return Value();
  }

  bool key(std::string& value) override {
    key_ = std::move(value);
    return true;
  }

  bool start_object(std::size_t /*count*/) override {
    if (places_.empty()) return Enter(Place::kTop);
    if (place() == Place::kList) {
      file_ = {};
      is_large_ = false;
      return Enter(Place::kFile);
    }
    const bool is_large = place() == Place::kFile && key_ == "lfs";
    is_large_ = is_large_ || is_large;
    return Enter(is_large ? Place::kLarge : Place::kElsewhere);
  }

  bool start_array(std::size_t /*count*/) override {
    if (place() == Place::kList) return Fail(Corrupt("a file is not an object"));
    const bool is_list = place() == Place::kTop && key_ == "siblings";
    has_list_ = has_list_ || is_list;
    return Enter(is_list ? Place::kList : Place::kElsewhere);
  }

  bool end_object() override {
    const Place ended = place();
    places_.pop_back();
    return ended != Place::kFile || AddFile();
  }

  bool end_array() override {
    places_.pop_back();
    return true;
  }

  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return Fail(Corrupt(StrCat("it is not JSON: byte ", byte)));
  }

 private:
  enum class Place : std::uint8_t { kTop, kList, kFile, kLarge, kElsewhere };

  Place place() const { return places_.empty() ? Place::kElsewhere : places_.back(); }

  // Returns where the text goes that is read now; null: nobody wants it.
  std::string* KeptText() {
    if (place() == Place::kTop && key_ == "sha") return &list_.revision;
    if (place() == Place::kFile && key_ == "rfilename") return &file_.path;
    if (place() == Place::kLarge && key_ == "sha256") return &file_.sha256;
    return nullptr;
  }

  bool Enter(Place place) {
    if (places_.size() == kMaxDepth)
      return Fail(Corrupt(StrCat("JSON nests deeper than ", kMaxDepth)));
    is_object_ = is_object_ || place == Place::kTop;
    places_.push_back(place);
    return true;
  }

  bool Value() { return place() != Place::kList || Fail(Corrupt("a file is not an object")); }

  bool Fail(Status status) {
    if (error_.ok()) error_ = std::move(status);
    return false;
  }

  bool AddFile() {
    if (file_.path.empty()) return Fail(Corrupt("a file has no name"));
    if (LeavesItsFolder(file_.path)) {
      return Fail(Corrupt(
          StrCat("file ", Quoted(file_.path), " has an empty part, '.' or '..' in its path")));
    }
    if (!IsGgufPath(file_.path)) return true;
    if (file_.bytes > kMaxLayerBytes) {
      return Fail(Corrupt(StrCat("file ", Quoted(file_.path), " has ", file_.bytes,
                                 " bytes; must have at most ", kMaxLayerBytes)));
    }
    if (list_.files.size() == kMaxHubFiles) {
      return Fail(
          Unsupported(StrCat("the repository has more than ", kMaxHubFiles, " .gguf files")));
    }
    list_.files.push_back(std::move(file_));
    return true;
  }

  HubList list_;
  Status error_;
  std::vector<Place> places_;  // the values that are open
  std::string key_;            // the last
  HubFile file_;               // that is read
  bool is_object_ = false, has_list_ = false;
  bool is_large_ = false;  // whether the file has "lfs", whose size is the file's
};

}  // namespace

Result<HubList> ParseHubList(std::string_view text) {
  ListReader reader;
  (void)json::sax_parse(text, &reader);
  return reader.Take();
}

}  // namespace kvcache::pull
