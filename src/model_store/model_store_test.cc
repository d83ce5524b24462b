#include "model_store/model_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/strings.h"
#include "model_store/blob_digest.h"

namespace kvcache::model_store_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModelStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "model_store_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  ModelStore store() const { return ModelStore((folder_ / "models").string()); }

  std::string File(const std::string& name, const std::string& bytes) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  // Stores `weights` under the name, with a system message that several models share.
  Manifest Store(const std::string& name, const std::string& weights) const {
    auto lock = store().Lock();
    EXPECT_TRUE(lock.ok()) << lock.status().message();
    Manifest manifest;
    manifest.config = *store().AddBytes(*lock, media_type::kConfig, "{}");
    manifest.layers.push_back(*store().AddFile(*lock, media_type::kModel, File("source", weights)));
    manifest.layers.push_back(*store().AddBytes(*lock, media_type::kSystem, "shared"));
    const Status status = store().Write(*lock, *ModelName::Parse(name), manifest);
    EXPECT_TRUE(status.ok()) << status.message();
    return manifest;
  }

  std::string Blob(const ManifestLayer& layer) const {
    return (folder_ / "models/blobs" / ("sha256-" + layer.digest.substr(7))).string();
  }

  fs::path folder_;
};

TEST(ModelNameTest, PartsHaveDefaults) {
  const ModelName name = *ModelName::Parse("llama3.2");
  EXPECT_EQ(name.Path(), "registry.ollama.ai/library/llama3.2/latest");
  EXPECT_EQ(name.Short(), "llama3.2:latest");
  EXPECT_EQ(ModelName::Parse("me/tiny:q4_0")->Path(), "registry.ollama.ai/me/tiny/q4_0");
  EXPECT_EQ(ModelName::Parse("me/tiny:q4_0")->Short(), "me/tiny:q4_0");
  EXPECT_EQ(ModelName::Parse("localhost:5000/me/tiny")->Path(), "localhost:5000/me/tiny/latest");
  EXPECT_EQ(ModelName::Parse("https://hf.co/me/tiny:x")->Short(), "hf.co/me/tiny:x");
}

TEST(ModelNameTest, RefusesWhatIsNoName) {
  for (const char* text :
       {"",        ":",       "a:",     "/a",   "a/", "..",         "../a", "a/..",
        "a:..",    "../../a", "x/../y", "a b",  "-a", "a:b:c",      "a:/b", "a.b/c",
        "a/b/c/d", ".",       "a\n",    "a\\b", "~a", "/etc/passwd"}) {
    const auto name = ModelName::Parse(text);
    EXPECT_FALSE(name.ok()) << text << " is " << name->Path();
    EXPECT_THAT(name.status().message(), HasSubstr("model name")) << text;
  }
  EXPECT_TRUE(ModelName::Parse(std::string(80, 'a')).ok());
  EXPECT_FALSE(ModelName::Parse(std::string(81, 'a')).ok());
}

TEST(BlobDigestTest, KnownDigest) {
  EXPECT_EQ(BlobDigest(Sha256Of(std::as_bytes(std::span(std::string_view("abc"))))),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_FALSE(IsBlobDigest("sha256:../../etc/passwd"));
}

TEST(ManifestTest, RoundTripAndErrors) {
  const std::string digest = "sha256:" + std::string(64, 'a');
  const Manifest manifest{{"c", digest, 2}, {{"m", digest, 3}}};
  EXPECT_EQ(*ParseManifest(ManifestText(manifest)), manifest);
  const std::string layer = R"({"mediaType":"m","digest":")" + digest + R"(","size":)";
  const auto message = [&](const std::string& text) {
    const auto parsed = ParseManifest(text);
    return parsed.ok() ? "it parses" : parsed.status().message();
  };
  EXPECT_THAT(message("{"), HasSubstr("not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message(R"({"schemaVersion":1})"), HasSubstr("schemaVersion"));
  EXPECT_THAT(message(R"({"schemaVersion":2,"config":)" + layer + "-1}}"), HasSubstr("size"));
  EXPECT_THAT(message(R"({"schemaVersion":2,"config":)" + layer + "1}}"), HasSubstr("layers"));
  EXPECT_THAT(message(R"({"schemaVersion":2,"layers":[],"config":{"mediaType":"m",)"
                      R"("digest":"sha256:../../x","size":1}})"),
              HasSubstr("digest"));
  EXPECT_THAT(message("1e99999"), HasSubstr("too large"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("nests"));
}

TEST_F(ModelStoreTest, StoresListsAndRemoves) {
  EXPECT_THAT(*store().List(), IsEmpty());
  const Manifest one = Store("one", "weights of one");
  const Manifest two = Store("me/two:q4", "weights of two");
  EXPECT_EQ(store().List()->size(), 2u);
  EXPECT_EQ(*store().Read(*ModelName::Parse("one")), one);
  EXPECT_EQ(*store().ReadText(two.layers[1], 100), "shared");
  auto lock = store().Lock();
  ASSERT_TRUE(store().Remove(*lock, *ModelName::Parse("one")).ok());
  EXPECT_FALSE(fs::exists(Blob(one.layers[0])));
  EXPECT_EQ(*store().ReadText(two.layers[1], 100), "shared");  // the other model names it, too
  EXPECT_FALSE(fs::exists(folder_ / "models/manifests/registry.ollama.ai/library"));
  EXPECT_EQ(store().Remove(*lock, *ModelName::Parse("one")).code(), StatusCode::kNotFound);
  ASSERT_TRUE(store().Remove(*lock, *ModelName::Parse("me/two:q4")).ok());
  EXPECT_TRUE(fs::is_empty(folder_ / "models/blobs"));
}

TEST_F(ModelStoreTest, SizesThatLie) {
  const Manifest one = Store("one", "weights");
  fs::resize_file(Blob(one.layers[0]), 3);
  EXPECT_THAT(store().BlobPath(one.layers[0]).status().message(),
              HasSubstr("has 3 bytes, its manifest says 7"));
  Store("one", "weights");  // writing again repairs a blob
  EXPECT_TRUE(store().Verify(one.layers[0]).ok());
  std::ofstream(Blob(one.layers[0]), std::ios::binary) << "WEIGHTS";
  EXPECT_TRUE(store().BlobPath(one.layers[0]).ok());
  EXPECT_EQ(store().Verify(one.layers[0]).code(), StatusCode::kCorrupt);
  Store("one", "weights");
  EXPECT_TRUE(store().Verify(one.layers[0]).ok());
}

TEST_F(ModelStoreTest, LinksOutOfTheStore) {
  const Manifest one = Store("one", "weights");
  const std::string outside = File("outside", "weights");
  fs::remove(Blob(one.layers[0]));
  fs::create_symlink(outside, Blob(one.layers[0]));
  EXPECT_THAT(store().BlobPath(one.layers[0]).status().message(), HasSubstr("out of the store"));
  Store("one", "weights");  // replaces the link and not the file behind it
  EXPECT_FALSE(fs::is_symlink(Blob(one.layers[0])));
  EXPECT_TRUE(fs::exists(outside));
  // A folder that leads out is neither read nor written through.
  fs::create_directories(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere",
                               folder_ / "models/manifests/registry.ollama.ai/evil");
  auto lock = store().Lock();
  const Status status = store().Write(*lock, *ModelName::Parse("evil/x"), one);
  EXPECT_THAT(status.message(), HasSubstr("out of the store"));
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
  // The store itself may be a link.
  fs::create_directory_symlink(folder_ / "models", folder_ / "link");
  const ModelStore linked((folder_ / "link").string());
  EXPECT_TRUE(linked.BlobPath(one.layers[0]).ok());
}

TEST_F(ModelStoreTest, BlobsStayWhileAManifestIsUnreadable) {
  const Manifest one = Store("one", "weights");
  File("models/manifests/registry.ollama.ai/library/two/latest", "{");
  auto lock = store().Lock();
  EXPECT_THAT(store().Remove(*lock, *ModelName::Parse("one")).message(),
              HasSubstr("its blobs stay"));
  EXPECT_TRUE(fs::exists(Blob(one.layers[0])));
  EXPECT_TRUE(store().Remove(*lock, *ModelName::Parse("two")).ok());
}

TEST_F(ModelStoreTest, AFullDiskLeavesTheStoreAsItWas) {
  const Manifest one = Store("one", "weights");
  const std::string large = File("large", std::string(1 << 20, 'x'));
  // A limit on the size of files stands for a full disk: the same call fails in the same place.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  auto lock = store().Lock();
  const auto added = store().AddFile(*lock, media_type::kModel, large);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  (void)std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(added.ok());
  EXPECT_THAT(added.status().message(), HasSubstr("blobs/sha256-"));
  EXPECT_EQ(store().List()->size(), 1u);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "models/blobs")) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 3);
  EXPECT_TRUE(store().Verify(one.layers[0]).ok());
}

// Returns the paths of everything in a folder.
std::set<std::string> Everything(const fs::path& folder) {
  std::set<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) paths.insert(entry.path());
  return paths;
}

TEST_F(ModelStoreTest, WithoutAManifestNothingStays) {
  const std::string source = File("source", "weights");
  const auto add = [&](const std::string& config) {
    auto lock = store().Lock();
    Manifest manifest;
    manifest.config = *store().AddBytes(*lock, media_type::kConfig, config);
    manifest.layers.push_back(*store().AddFile(*lock, media_type::kModel, source));
    manifest.layers.push_back({"m", "sha256:" + std::string(64, 'a'), 3});  // is missing
    EXPECT_FALSE(store().Write(*lock, *ModelName::Parse("one"), manifest).ok());
  };
  std::set<std::string> before = Everything(folder_);
  add("{}");
  EXPECT_EQ(Everything(folder_), before) << "not even the store's folder";
  Store("one", "weights");
  before = Everything(folder_);
  add("{ }");
  EXPECT_EQ(Everything(folder_), before) << "blobs that were there stay";
  EXPECT_FALSE(store().Remove(*store().Lock(), *ModelName::Parse("two")).ok());
  EXPECT_EQ(Everything(folder_), before);
}

TEST_F(ModelStoreTest, TheNextLockRemovesWhatAKilledProcessLeft) {
  Store("one", "weights");
  const std::set<std::string> before = Everything(folder_);
  const pid_t child = fork();
  if (child == 0) {
    auto lock = store().Lock();
    (void)store().AddBytes(*lock, media_type::kSystem, "left");
    (void)store().AddBytes(*lock, media_type::kSystem, "shared");  // of the model that is there
    (void)lock->MakeFolder(store().root() + "/manifests/registry.ollama.ai/library/new");
    (void)lock->MakeFolder(store().root() + "/manifests/elsewhere/library/new");
    std::ofstream(StoreLock::ConvertedPath(store().root())) << "half of the weights";
    _exit(0);  // as if killed: no destructor runs
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_GT(Everything(folder_).size(), before.size());
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_EQ(Everything(folder_), before);
}

TEST_F(ModelStoreTest, AListOfLeftBlobsIsNotTrusted) {
  const Manifest one = Store("one", "weights");
  const std::string outside = File("outside", "x");
  const std::string list = "models/.kvcache-create.list";
  const std::string empty = (folder_ / "empty").string();
  fs::create_directories(empty);
  File(list, StrCat("../../outside\nsha256:../../outside\nfolder ../empty\nfolder blobs\nfolder \n",
                    one.layers[0].digest, "\n\n", std::string(100000, 'a')));
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_TRUE(fs::exists(outside));
  EXPECT_TRUE(fs::exists(empty));
  EXPECT_TRUE(fs::exists(Blob(one.layers[0]))) << "a manifest names it";
  // A manifest that cannot be read may name any of them.
  const ManifestLayer left = [&] {
    auto lock = store().Lock();
    return *store().AddBytes(*lock, "m", "left");
  }();
  File("models/blobs/sha256-" + left.digest.substr(7), "left");
  File(list, left.digest + "\n");
  File("models/manifests/registry.ollama.ai/library/two/latest", "{");
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_TRUE(fs::exists(Blob(left)));
  EXPECT_TRUE(store().Remove(*store().Lock(), *ModelName::Parse("two")).ok());
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_FALSE(fs::exists(Blob(left)));
}

TEST_F(ModelStoreTest, AReplacedNameLetsItsBlobsGo) {
  const Manifest old = Store("one", "weights of one");
  const Manifest other = Store("two", "weights of two");
  const Manifest now = Store("one", "new weights");
  EXPECT_FALSE(fs::exists(Blob(old.layers[0])));
  for (const Manifest* kept : {&other, &now}) {
    for (const ManifestLayer& layer : kept->layers) EXPECT_TRUE(fs::exists(Blob(layer)));
  }
  auto lock = store().Lock();
  EXPECT_TRUE(store().Write(*lock, *ModelName::Parse("one"), now).ok());  // as it was
  EXPECT_TRUE(fs::exists(Blob(now.layers[0])));
  EXPECT_TRUE(store().Write(*lock, *ModelName::Parse("one"), other).ok());  // as `cp` does
  EXPECT_FALSE(fs::exists(Blob(now.layers[0])));
  EXPECT_TRUE(fs::exists(Blob(other.layers[0])));
}

class PullClaimTest : public ModelStoreTest {
 protected:
  static bool Never() { return false; }
  static ModelName Name(const std::string& name) { return *ModelName::Parse(name); }

  ManifestLayer Layer(const std::string& bytes) const {
    return {"m", BlobDigest(Sha256Of(std::as_bytes(std::span(bytes)))), bytes.size()};
  }
  // Puts a blob into the store as a pull does.
  ManifestLayer Fetch(const std::string& bytes, std::size_t count) const {
    const ManifestLayer layer = Layer(bytes);
    auto partial = store().OpenPartial(layer, Never);
    EXPECT_TRUE(partial.ok());
    EXPECT_TRUE((*partial)->Append(std::as_bytes(std::span(bytes)).first(count)).ok());
    if (count < bytes.size()) return layer;
    EXPECT_TRUE((*partial)->Commit().ok());
    return layer;
  }
  bool HasPart(const std::string& bytes) const { return store().HasPartOf({Layer(bytes)}); }
  int Lists() const { return static_cast<int>(PullClaim::List(store().root())->size()); }
};

TEST_F(PullClaimTest, NobodyRemovesWhatAPullHas) {
  const Manifest one = Store("one", "weights");
  auto claim = store().Claim(Name("two"), {Layer("weights"), Layer("more")}, Never);
  ASSERT_TRUE(claim.ok()) << claim.status().message();
  Fetch("more", 4);
  EXPECT_TRUE(store().Remove(*store().Lock(), Name("one")).ok());
  EXPECT_TRUE(HasPart("weights"));
  {
    auto lock = store().Lock();  // of a call that fails after it has stored the same bytes
    fs::remove(Blob(Layer("more")));
    EXPECT_TRUE(store().AddBytes(*lock, "m", "more").ok());
  }
  EXPECT_TRUE(HasPart("more"));
  EXPECT_EQ(store().Remove(*store().Lock(), Name("two")).code(), StatusCode::kUnsupported);
  claim->reset();  // as a pull that was stopped: the next one goes on
  EXPECT_EQ(Lists(), 1);
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_TRUE(HasPart("more"));
  EXPECT_TRUE(store().Remove(*store().Lock(), Name("two")).ok());
  EXPECT_FALSE(HasPart("more"));
  EXPECT_FALSE(HasPart("weights"));
  EXPECT_EQ(Lists(), 0);
  EXPECT_EQ(store().Remove(*store().Lock(), Name("two")).code(), StatusCode::kNotFound);
}

TEST_F(PullClaimTest, ALaterPullRemovesWhatItDoesNotNeed) {
  (void)store().Claim(Name("one"), {Layer("old"), Layer("same")}, Never);
  Fetch("old", 2);
  Fetch("same", 3);
  auto claim = store().Claim(Name("one"), {Layer("new"), Layer("same")}, Never);
  ASSERT_TRUE(claim.ok());
  EXPECT_FALSE(HasPart("old"));
  EXPECT_TRUE(HasPart("same"));
  (*claim)->Finish();
  EXPECT_EQ(Lists(), 0);
}

TEST_F(PullClaimTest, TimeEndsAStoppedPull) {
  (void)store().Claim(Name("one"), {Layer("old"), Layer("whole")}, Never);
  Fetch("old", 2);
  Fetch("whole", 5);
  const auto age = [&](const fs::path& path, int hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const std::string list = PullClaim::List(store().root())->front().path;
  age(list, 24 * 13);
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_TRUE(HasPart("old"));
  age(list, 24 * 15);
  {
    auto running = PullClaim::Take(store().root(), Name("one"), Never);
    EXPECT_TRUE(store().Lock().ok());
    EXPECT_TRUE(HasPart("old"));  // somebody pulls it
  }
  age(list, 24 * 15);
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_FALSE(HasPart("old"));
  EXPECT_FALSE(HasPart("whole"));
  EXPECT_EQ(Lists(), 0);
  // A part that is on no list, as older programs left.
  Fetch("stray", 2);
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_TRUE(HasPart("stray"));
  age(PartialBlob::PathOf(Layer("stray"), Blob(Layer("stray"))), 24 * 15);
  EXPECT_TRUE(store().Lock().ok());
  EXPECT_FALSE(HasPart("stray"));
}

TEST_F(PullClaimTest, AManifestThatLiesAboutASizeTouchesNoOtherPart) {
  const ManifestLayer layer = Fetch("a long blob", 6);
  ManifestLayer shorter = layer;
  shorter.size = 3;
  {
    auto partial = store().OpenPartial(shorter, Never);
    ASSERT_TRUE(partial.ok());
    EXPECT_EQ((*partial)->size(), 0u);
  }
  EXPECT_EQ((*store().OpenPartial(layer, Never))->size(), 6u);
}

TEST_F(PullClaimTest, WaitingCanBeStopped) {
  auto claim = PullClaim::Take(store().root(), Name("one"), Never);
  int asked = 0;
  const auto soon = [&] { return ++asked > 2; };
  EXPECT_EQ(PullClaim::Take(store().root(), Name("one"), soon).status().code(),
            StatusCode::kCancelled);
  EXPECT_TRUE(PullClaim::Take(store().root(), Name("two"), soon).ok());
  auto lock = store().Lock();
  asked = 0;
  EXPECT_EQ(store().Lock(soon).status().code(), StatusCode::kCancelled);
  Fetch("large", 5);
  EXPECT_EQ(store().Verify(Layer("large"), [] { return true; }).code(), StatusCode::kCancelled);
  EXPECT_FALSE(store().Has(Layer("large"), [] { return true; }));
}

TEST_F(PullClaimTest, AListIsNotTrusted) {
  const Manifest one = Store("one", "weights");
  const std::string outside = File("outside", "x");
  File("models/.kvcache-pull-0123.list",
       StrCat("name registry.ollama.ai/library/bad/latest\nsha256:../../outside 1\nsha256: 1\n",
              one.layers[0].digest, " x\n", one.layers[0].digest, " 7\n\n"));
  EXPECT_EQ(Lists(), 1);
  EXPECT_TRUE(store().Remove(*store().Lock(), Name("bad")).ok());
  EXPECT_TRUE(fs::exists(outside));
  EXPECT_TRUE(fs::exists(Blob(one.layers[0]))) << "a manifest names it";
}

}  // namespace
}  // namespace kvcache::model_store_test
