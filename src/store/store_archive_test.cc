// Objects that go from one store to another through a file.
#include "store/store_archive.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "store/store_testing.h"

namespace kvcache::store::store_archive_test {
namespace {

class StoreArchiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(directory_.path());
    for (std::uint64_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(from_->Put(TestId(i, i), TestPayload(i, 100 * i)).ok());
    }
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    file << bytes;
  }

  void ExpectOnlyWhole() {
    const auto all = to_->List();
    ASSERT_TRUE(all.ok());
    for (const StoredObject& object : *all) {
      EXPECT_EQ(*ReadObject(*to_, object.id), *ReadObject(*from_, object.id));
    }
  }

  TestDirectory directory_;
  const std::string path_ = directory_.path() + "/export";
  std::unique_ptr<Store> from_ = std::move(*MakeMemoryStore());
  std::unique_ptr<Store> to_ = std::move(*MakeMemoryStore());
};

TEST_F(StoreArchiveTest, CarriesEveryObject) {
  const auto exported = ExportObjects(*from_, "", path_);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  EXPECT_EQ(exported->objects, 5);
  EXPECT_EQ(exported->payload_bytes, 1000);
  const auto imported = ImportObjects(*to_, path_);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->objects, 5);
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(*ReadObject(*to_, TestId(i, i)), TestPayload(i, 100 * i));
  }
}

TEST_F(StoreArchiveTest, StoresNothingThatIsNotWhole) {
  ASSERT_TRUE(ExportObjects(*from_, "", path_).ok());
  const std::string whole = Bytes();
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    Write(whole.substr(0, size));
    to_ = std::move(*MakeMemoryStore());
    (void)ImportObjects(*to_, path_).ok();
    ExpectOnlyWhole();
  }
  for (std::size_t at = 0; at < whole.size(); at += 5) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    Write(flipped);
    to_ = std::move(*MakeMemoryStore());
    const auto imported = ImportObjects(*to_, path_);
    EXPECT_EQ(imported.status().code(), StatusCode::kCorrupt) << "at " << at;
    ExpectOnlyWhole();
  }
}

TEST_F(StoreArchiveTest, SkipsWhatHasNoRoom) {
  ASSERT_TRUE(from_->Put(TestId(9), TestPayload(9, 100'000)).ok());
  ASSERT_TRUE(ExportObjects(*from_, "", path_).ok());
  to_ = std::move(*MakeMemoryStore(50'000));
  const auto imported = ImportObjects(*to_, path_);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->objects, 5);
  EXPECT_EQ(imported->skipped, 1);
}

}  // namespace
}  // namespace kvcache::store::store_archive_test
