// Damage in the pages of an open store costs what it hit: one object, or nothing if the index says what was there.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "store/disk/disk_store.h"
#include "store/disk/failing_calls_testing.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_damage_test {
namespace {

constexpr std::int64_t kBudget = std::int64_t{4} << 20;
constexpr std::uint64_t kObjects = 24;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeader = 16;

std::size_t SizeOfObject(std::uint64_t number) {
  return 3000 + number * 3000;
}

// A store with large objects, whose file a test changes.
class DiskStoreDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = Open();
    for (std::uint64_t i = 0; i < kObjects; ++i) {
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOfObject(i))).ok());
    }
  }

  std::unique_ptr<Store> Open() const {
    auto store = OpenDiskStore({.directory = directory_.path(), .budget_bytes = kBudget});
    EXPECT_TRUE(store.ok()) << store.status().message();
    return store.ok() ? std::move(*store) : nullptr;
  }
  std::string Bytes() const {
    std::ifstream file(directory_.file(), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  }
  // The file stays the same one: a store may have it open.
  void FlipAt(std::size_t at, int bit) const {
    std::fstream file(directory_.file(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get() ^ (1 << bit);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte));
    ASSERT_TRUE(file.good());
  }
  // Returns where the pages of an object begin.
  std::size_t PagesOf(std::uint64_t number) const {
    const std::string bytes = Bytes();
    const ObjectId id = TestId(number);
    const std::string name(reinterpret_cast<const char*>(&id), sizeof(id));
    for (std::size_t page = 0; page + kPage <= bytes.size(); page += kPage) {
      if (bytes.compare(page + kHeader, 8, "kvobj001") == 0 &&
          bytes.compare(page + kHeader + 16, name.size(), name) == 0) {
        return page;
      }
    }
    ADD_FAILURE() << "no pages of object " << number;
    return 0;
  }

  // Returns the objects that are whole.
  static std::uint64_t CountWhole(Store& store) {
    std::uint64_t whole = 0;
    for (std::uint64_t i = 0; i < kObjects; ++i) {
      const auto found = ReadObject(store, TestId(i));
      if (!found.ok()) continue;
      EXPECT_EQ(*found, TestPayload(i, SizeOfObject(i)));
      ++whole;
    }
    return whole;
  }
  // Stores others until everything that was there had to go.
  static void Churn(Store& store) {
    for (std::uint64_t i = 1000; i < 1100; ++i) {
      const Status status = store.Put(TestId(i), TestPayload(i, 60'000));
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_GT(store.List()->size(), 30U);
    EXPECT_EQ(CountWhole(store), 0U);
  }
  // The fields of a header that say something: a number, flags, pages.
  static std::size_t RandomField(std::mt19937& random) {
    const std::size_t at = random() % 14;
    return at < 8 ? at : at + 2;
  }

  const TestDirectory directory_;
};

TEST_F(DiskStoreDamage, AWrongHeaderCostsNothingAtARemoval) {
  const auto store = Open();
  std::mt19937 random(1);
  for (std::uint64_t number = 0; number < kObjects; ++number) {
    FlipAt(PagesOf(number) + RandomField(random), static_cast<int>(random() % 8));
    ASSERT_TRUE(store->Remove(TestId(number)).ok());
    ASSERT_EQ(CountWhole(*store), kObjects - 1) << "object " << number;
    ASSERT_TRUE(store->Put(TestId(number), TestPayload(number, SizeOfObject(number))).ok());
  }
  EXPECT_EQ(store->Stats()->damaged, 0);
  Churn(*store);
}

TEST_F(DiskStoreDamage, AWrongHeaderCostsNothingAtAnEviction) {
  std::mt19937 random(2);
  for (const std::uint64_t number : {0, 1, 7, 23}) {
    FlipAt(PagesOf(number) + RandomField(random), static_cast<int>(random() % 8));
  }
  const auto store = Open();
  Churn(*store);
  EXPECT_EQ(store->Stats()->damaged, 0);
  EXPECT_EQ(store->Stats()->repair, "");
  EXPECT_EQ(Open()->Stats()->repair, "");
}

TEST_F(DiskStoreDamage, AReadFindsAndCorrectsAWrongHeader) {
  FlipAt(PagesOf(5) + 12, 0);
  const std::size_t pages = PagesOf(5);
  const auto store = Open();
  EXPECT_EQ(store->Stats()->repair, "");
  EXPECT_EQ(CountWhole(*store), kObjects);
  EXPECT_NE(store->Stats()->repair.find("were corrected"), std::string::npos);
  EXPECT_EQ(Bytes()[pages + 12], 5) << "the pages of 128 + 18,000 bytes are five";
}

TEST_F(DiskStoreDamage, AWrongHeaderAndEnvelopeCostOneObject) {
  for (const bool is_read : {true, false}) {
    const std::size_t pages = PagesOf(6);
    FlipAt(pages + 12, 3);
    FlipAt(pages + kHeader + 90, 1);
    {
      const auto store = Open();
      if (is_read) {
        EXPECT_EQ(ReadObject(*store, TestId(6)).status().code(), StatusCode::kCorrupt);
      } else {
        EXPECT_TRUE(store->Remove(TestId(6)).ok());
      }
      EXPECT_FALSE(*store->Contains(TestId(6)));
      EXPECT_EQ(CountWhole(*store), kObjects - 1);
      EXPECT_EQ(store->List()->size(), kObjects - 1);
      const Status put = store->Put(TestId(6), TestPayload(6, SizeOfObject(6)));
      EXPECT_NE(put.message().find("the pages of an earlier object"), std::string::npos);
      EXPECT_EQ(CountWhole(*store), kObjects - 1);
    }
    {
      const auto store = Open();
      EXPECT_EQ(store->Stats()->repair, "");
      store->Touch(std::vector{TestId(6)});
      EXPECT_EQ(store->List()->size(), kObjects - 1);
      EXPECT_FALSE(*store->Contains(TestId(6)));
      EXPECT_EQ(ReadObject(*store, TestId(6)).status().code(), StatusCode::kNotFound);
      EXPECT_EQ(CountWhole(*store), kObjects - 1);
    }
    const auto stats = CollectGarbage({.directory = directory_.path(), .budget_bytes = kBudget});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(stats->objects, static_cast<std::int64_t>(kObjects) - 1);
    const auto store = Open();
    EXPECT_EQ(store->Stats()->repair, "");
    ASSERT_TRUE(store->Put(TestId(6), TestPayload(6, SizeOfObject(6))).ok());
    EXPECT_EQ(CountWhole(*store), kObjects);
  }
  Churn(*Open());
}

TEST_F(DiskStoreDamage, ADiskThatCannotReadAPageCostsOneObject) {
  const auto pages = static_cast<std::uint32_t>(PagesOf(9));
  const auto store = Open();
  const FailingCall bad_page{.number = SYS_pread64,
                             .error = EIO,
                             .argument = 3,
                             .from = pages,
                             .below = pages + static_cast<std::uint32_t>(kPage)};
  const bool is_filtered = WithFailingCalls({bad_page}, [&] {
    EXPECT_EQ(ReadObject(*store, TestId(9)).status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(CountWhole(*store), kObjects - 1);
    EXPECT_FALSE(*store->Contains(TestId(9)));
    EXPECT_FALSE(store->Put(TestId(9), TestPayload(9, SizeOfObject(9))).ok());
    Churn(*store);
  });
  if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
  EXPECT_EQ(store->Stats()->damaged, 1);
  EXPECT_EQ(store->Stats()->repair, "");
}

// LMDB finds that it cannot follow the index. Nobody continues with the old file, and the store says what was lost.
TEST_F(DiskStoreDamage, AnIndexThatIsDamagedInUseIsDiscardedAndSaysSo) {
  const auto store = Open();
  const std::string bytes = Bytes();
  int hit = 0;
  for (std::size_t page = 2 * kPage; page + kPage <= bytes.size(); page += kPage) {
    // A leaf with its own number: one of the index, perhaps an old one. No kind of page is left.
    std::uint64_t number = 0;
    std::memcpy(&number, bytes.data() + page, sizeof(number));
    if (number != page / kPage || bytes[page + 10] != 2) continue;
    FlipAt(page + 10, 1);
    ++hit;
  }
  ASSERT_GT(hit, 2);
  const Status removed = store->Remove(TestId(3));
  ASSERT_TRUE(removed.ok()) << removed.message();
  EXPECT_EQ(ReadObject(*store, TestId(4)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(CountWhole(*store), 0U);
  const auto stats = store->Stats();
  EXPECT_NE(stats->repair.find("the file was discarded, with"), std::string::npos) << stats->repair;
  EXPECT_TRUE(store->Put(TestId(3), TestPayload(3, 5000)).ok());
  EXPECT_EQ(*ReadObject(*store, TestId(3)), TestPayload(3, 5000));
}

}  // namespace
}  // namespace kvcache::store::disk_store_damage_test
