#include "pull/blob_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "base/strings.h"
#include "model_store/blob_digest.h"

namespace kvcache::pull {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Sends a blob as a test says.
class BlobServer final : public HttpClient {
 public:
  explicit BlobServer(std::string bytes) : blob(std::move(bytes)) {}

  Status Get(const HttpRequest& request, const HttpSink& sink) override {
    ++requests;
    std::size_t from = 0;
    for (const auto& [name, value] : request.headers) {
      if (name == "Range") from = std::stoul(value.substr(6));
    }
    if (from > 0 && refuses_ranges) return sink.on_head({.status = 416});
    if (!has_ranges) from = 0;
    HttpHead head{.status = from > 0 ? 206 : 200};
    if (from > 0) {
      head.headers["content-range"] =
          StrCat("bytes ", from, "-", blob.size() - 1, "/", blob.size());
    }
    KVCACHE_RETURN_IF_ERROR(sink.on_head(head));
    const std::size_t count = std::min(blob.size() - from, most);
    KVCACHE_RETURN_IF_ERROR(sink.on_bytes(std::as_bytes(std::span(blob)).subspan(from, count)));
    const bool is_whole = from + count == blob.size();
    return is_whole ? Status::Ok() : Status(StatusCode::kIo, "the connection broke");
  }

  const std::string blob;
  bool has_ranges = true;
  bool refuses_ranges = false;
  std::size_t most = std::string::npos;  // bytes before a break
  int requests = 0;
};

class BlobFetchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "blob_fetch_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  ManifestLayer Layer() const {
    return {"m", BlobDigest(Sha256Of(std::as_bytes(std::span(server_.blob)))), server_.blob.size()};
  }
  std::string BlobPath() const {
    return (folder_ / "blobs" / ("sha256-" + Layer().digest.substr(7))).string();
  }
  void Begin(const std::string& bytes) const {
    fs::create_directories(folder_ / "blobs");
    std::ofstream(PartialBlob::PathOf(Layer(), BlobPath()), std::ios::binary) << bytes;
  }
  Status Fetch(PullOptions options = {}) {
    options.pause_seconds = 0.001;
    Fetcher fetcher(server_);
    return FetchBlob(ModelStore(folder_.string()), fetcher, {Layer(), "https://a.test/blob"},
                     options);
  }
  bool IsThere() const { return ModelStore(folder_.string()).Has(Layer()); }

  fs::path folder_;
  BlobServer server_{std::string(300'000, 'b')};
};

TEST_F(BlobFetchTest, BreaksThatBringBytesGoOn) {
  server_.most = 20'000;  // more than 16 KiB
  EXPECT_TRUE(Fetch().ok());
  EXPECT_EQ(server_.requests, 15);
  EXPECT_TRUE(IsThere());
}

// A server without ranges brings the same bytes again: that is no progress, however many they are.
TEST_F(BlobFetchTest, BytesThatComeAgainAreNoProgress) {
  server_.has_ranges = false;
  server_.most = 200'000;
  Begin(std::string(100'000, 'b'));
  const Status status = Fetch({.max_retries = 3});
  EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
  EXPECT_EQ(server_.requests, 4);
  EXPECT_FALSE(IsThere());
}

TEST_F(BlobFetchTest, ARangeThatIsRefusedStartsAgain) {
  server_.refuses_ranges = true;
  Begin(std::string(100'000, 'x'));  // of another file
  EXPECT_TRUE(Fetch().ok());
  EXPECT_EQ(server_.requests, 2);
  EXPECT_TRUE(IsThere());
}

TEST_F(BlobFetchTest, ABlobThatIsHereIsReadUntilItIsCancelled) {
  EXPECT_TRUE(Fetch().ok());
  EXPECT_TRUE(Fetch().ok());
  EXPECT_EQ(server_.requests, 1);
  EXPECT_EQ(Fetch({.cancelled = [] { return true; }}).code(), StatusCode::kCancelled);
  EXPECT_TRUE(IsThere());
}

TEST_F(BlobFetchTest, AFileWithoutAByteDoesNotStay) {
  server_.most = 0;
  EXPECT_FALSE(Fetch({.max_retries = 0}).ok());
  EXPECT_TRUE(fs::is_empty(folder_ / "blobs"));
}

}  // namespace
}  // namespace kvcache::pull
