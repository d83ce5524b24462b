#include "store/disk/lmdb_check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/os_error.h"
#include "store/disk/lmdb_value.h"

namespace kvcache::store {
namespace {

// The layout of a file, in the byte order of the machine that wrote it.
constexpr std::uint32_t kLmdbMagic = 0xBEEFC0DE;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kNoPage = ~std::uint64_t{0};
constexpr std::size_t kPageHeader = 16;
constexpr std::uint16_t kBranch = 0x01, kLeaf = 0x02, kMetaPage = 0x08;
constexpr std::uint16_t kBigData = 0x01, kSubTable = 0x02;
constexpr std::uint16_t kFreeListFlags =
    0x4008;                     // integer keys; the file has no directory of its own
constexpr int kMaxLevels = 30;  // LMDB's cursors have 32
constexpr std::size_t kMaxPageBytes = 1 << 15;

struct Table {  // MDB_db
  std::uint32_t pad;
  std::uint16_t flags;
  std::uint16_t depth;
  std::uint64_t branch_pages;
  std::uint64_t leaf_pages;
  std::uint64_t overflow_pages;
  std::uint64_t entries;
  std::uint64_t root;
};
static_assert(sizeof(Table) == 48);
constexpr std::size_t kCountersAt = offsetof(Table, branch_pages);
static_assert(offsetof(Table, entries) == kCountersAt + 24);

struct Meta {  // MDB_meta
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t address;
  std::uint64_t map_bytes;
  Table free;
  Table main;
  std::uint64_t last_page;
  std::uint64_t transaction;
};
static_assert(sizeof(Meta) == 136);
constexpr std::size_t kFreeTableAt = kPageHeader + offsetof(Meta, free);
constexpr std::size_t kMainTableAt = kPageHeader + offsetof(Meta, main);
constexpr std::uint64_t kMaxTransactions = std::uint64_t{1} << 62;  // more is damage

template <class T>
T Load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

Status ReadAt(int fd, std::uint64_t at, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OsError("read", "the store's file", errno);
    if (got == 0) return Corrupt("the file ends early");
    at += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Status::Ok();
}

Status CheckMeta(std::span<const std::byte> page, std::uint64_t number, Meta& meta) {
  if (Load<std::uint64_t>(page, 0) != number || (Load<std::uint16_t>(page, 10) & kMetaPage) == 0) {
    return Corrupt(StrCat("page ", number, " is not a meta page"));
  }
  meta = Load<Meta>(page, kPageHeader);
  const std::uint32_t page_bytes = meta.free.pad;
  if (meta.magic != kLmdbMagic || meta.version != kVersion) {
    return Corrupt(StrCat("meta page ", number, " is not of a file of LMDB 0.9"));
  }
  if (page_bytes < 512 || page_bytes > kMaxPageBytes || (page_bytes & (page_bytes - 1)) != 0) {
    return Corrupt(StrCat("pages of ", page_bytes, " bytes"));
  }
  if (meta.free.flags != kFreeListFlags || meta.main.flags != 0 || meta.main.pad != 0) {
    return Corrupt(StrCat("meta page ", number, " has unknown tables"));
  }
  // LMDB writes odd transactions to the second page, and looks for them there.
  const bool is_elsewhere = meta.transaction != 0 && meta.transaction % 2 != number;
  if (is_elsewhere || meta.transaction > kMaxTransactions) {
    return Corrupt(StrCat("meta page ", number, " has transaction ", meta.transaction));
  }
  return Status::Ok();
}

// The two meta pages; the second begins where the first says that its page ends.
Result<std::array<Meta, 2>> ReadMetas(int fd) {
  std::array<Meta, 2> metas{};
  std::array<std::byte, kPageHeader + sizeof(Meta)> bytes{};
  KVCACHE_RETURN_IF_ERROR(ReadAt(fd, 0, bytes));
  KVCACHE_RETURN_IF_ERROR(CheckMeta(bytes, 0, metas[0]));
  KVCACHE_RETURN_IF_ERROR(ReadAt(fd, metas[0].free.pad, bytes));
  KVCACHE_RETURN_IF_ERROR(CheckMeta(bytes, 1, metas[1]));
  if (metas[1].free.pad != metas[0].free.pad) return Corrupt("the meta pages differ");
  return metas;
}

// The pages and entries of a tree, as its table counts them.
struct Counts {
  std::array<std::uint64_t, 4> all{};  // in the order of LmdbCounters
  enum : std::size_t { kBranches, kLeaves, kOverflows, kEntries };
};

class Walk {
 public:
  Walk(int fd, const Meta& meta, const LmdbVisitor& visit)
      : fd_(fd),
        page_bytes_(meta.free.pad),
        last_page_(meta.last_page),
        taken_(static_cast<std::size_t>(meta.last_page) + 1),
        visit_(visit) {}

  enum class Kind { kFreeList, kTables, kValues };

  // `at`: the table's offset in the file.
  Status Tree(const Table& table, Kind kind, std::uint64_t at, std::string_view name = "") {
    Counts counts;
    KVCACHE_RETURN_IF_ERROR(Pages(table, {kind, name, counts}));
    const std::array<std::uint64_t, 4> said = {table.branch_pages, table.leaf_pages,
                                               table.overflow_pages, table.entries};
    if (said != counts.all) wrong_.push_back({at + kCountersAt, counts.all});
    return Status::Ok();
  }
  std::vector<LmdbCounters> TakeWrong() { return std::move(wrong_); }

 private:
  // What is walked, and what was seen of it.
  struct Place {
    Kind kind;
    std::string_view name;
    Counts& counts;  // NOLINT: that of Tree
  };

  Status Pages(const Table& table, const Place& place) {
    if (table.root == kNoPage) return Status::Ok();
    if (table.depth < 1 || table.depth > kMaxLevels) {
      return Corrupt(StrCat("a tree has ", table.depth, " levels"));
    }
    return Page(table.root, table.depth, place);
  }

  struct Node {
    std::size_t key_at = 0, key_bytes = 0;
    std::uint64_t low = 0;  // size of the data
    std::uint16_t flags = 0;
  };

  Status Take(std::uint64_t first, std::uint64_t pages) {
    if (first < 2 || first > last_page_ || pages > last_page_ - first + 1) {
      return Corrupt(StrCat("pages ", first, " to ", first + pages, " of ", last_page_ + 1));
    }
    for (std::uint64_t i = first; i < first + pages; ++i) {
      if (taken_[static_cast<std::size_t>(i)]) return Corrupt(StrCat("page ", i, " is used twice"));
      taken_[static_cast<std::size_t>(i)] = true;
    }
    return Status::Ok();
  }

  Status Page(std::uint64_t number, int level, const Place& place) {
    KVCACHE_RETURN_IF_ERROR(Take(number, 1));
    std::vector<std::byte> page(page_bytes_);
    KVCACHE_RETURN_IF_ERROR(ReadAt(fd_, number * page_bytes_, page));
    const auto flags = Load<std::uint16_t>(page, 10);
    const std::size_t lower = Load<std::uint16_t>(page, 12);
    const std::size_t upper = Load<std::uint16_t>(page, 14);
    const bool is_leaf = level == 1;
    const auto broken = [&](std::string_view what) {
      return Corrupt(StrCat("page ", number, " of the index: ", what));
    };
    if (Load<std::uint64_t>(page, 0) != number) return broken("another page's number");
    if (flags != (is_leaf ? kLeaf : kBranch)) return broken("another kind of page");
    if (lower < kPageHeader || lower % 2 != 0 || upper < lower || upper > page_bytes_) {
      return broken("its bounds");
    }
    const std::size_t count = (lower - kPageHeader) / 2;
    if (count < (is_leaf ? 1U : 2U)) return broken("too few entries");
    ++place.counts.all[is_leaf ? Counts::kLeaves : Counts::kBranches];
    std::optional<Node> before;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = Load<std::uint16_t>(page, kPageHeader + 2 * i);
      if (at < upper || at % 2 != 0 || at + kLmdbNodeHeader > page_bytes_)
        return broken("an entry");
      const Node node{.key_at = at + kLmdbNodeHeader,
                      .key_bytes = Load<std::uint16_t>(page, at + 6),
                      .low = Load<std::uint16_t>(page, at) |
                             (std::uint64_t{Load<std::uint16_t>(page, at + 2)} << 16),
                      .flags = Load<std::uint16_t>(page, at + 4)};
      if (node.key_at + node.key_bytes > page_bytes_) return broken("a key");
      // The first key of a branch page counts as lower than all keys.
      if (before && (is_leaf || i > 1) && !Ascends(page, *before, node, place.kind)) {
        return broken("keys in the wrong order");
      }
      before = node;
      if (is_leaf) {
        ++place.counts.all[Counts::kEntries];
        KVCACHE_RETURN_IF_ERROR(Entry(number * page_bytes_, page, node, place));
      } else {
        KVCACHE_RETURN_IF_ERROR(
            Page(node.low | (std::uint64_t{node.flags} << 32), level - 1, place));
      }
    }
    return Status::Ok();
  }

  static bool Ascends(std::span<const std::byte> page, const Node& a, const Node& b, Kind kind) {
    if (kind == Kind::kFreeList) {
      return a.key_bytes == 8 && b.key_bytes == 8 &&
             Load<std::uint64_t>(page, a.key_at) < Load<std::uint64_t>(page, b.key_at);
    }
    const std::size_t common = std::min(a.key_bytes, b.key_bytes);
    const int order = std::memcmp(page.data() + a.key_at, page.data() + b.key_at, common);
    return order < 0 || (order == 0 && a.key_bytes < b.key_bytes);
  }

  // `at`: the page's offset in the file.
  Status Entry(std::uint64_t at, std::span<const std::byte> page, const Node& node,
               const Place& place) {
    const std::size_t data_at = node.key_at + node.key_bytes;
    const bool is_big = node.flags == kBigData;
    const std::size_t here = is_big ? 8 : static_cast<std::size_t>(node.low);
    if (node.flags != (place.kind == Kind::kTables ? kSubTable : is_big ? kBigData : 0)) {
      return Corrupt(StrCat("an entry of the index has flags ", node.flags));
    }
    if (node.key_bytes == 0 || data_at + here > page_bytes_) {
      return Corrupt("an entry of the index is larger than its page");
    }
    const std::span<const std::byte> key = page.subspan(node.key_at, node.key_bytes);
    const std::span<const std::byte> data = page.subspan(data_at, here);
    if (place.kind == Kind::kTables) return SubTable(at + data_at, key, data);
    std::uint64_t first = 0;
    if (is_big) {
      const std::uint64_t pages = (kPageHeader - 1 + node.low) / page_bytes_ + 1;
      first = Load<std::uint64_t>(data, 0);
      place.counts.all[Counts::kOverflows] += pages;
      KVCACHE_RETURN_IF_ERROR(Take(first, pages));
    }
    if (place.kind == Kind::kFreeList) return FreeList(node, data, first);
    if (visit_) visit_({place.name, key, is_big ? data.first(0) : data, node.low});
    return Status::Ok();
  }

  Status FreeList(const Node& node, std::span<const std::byte> data, std::uint64_t first) {
    if (node.key_bytes != 8) return Corrupt("a key of the list of free pages");
    if (first == 0) return FreePages(data);
    std::vector<std::byte> list(static_cast<std::size_t>(node.low) + kPageHeader);
    KVCACHE_RETURN_IF_ERROR(ReadAt(fd_, first * page_bytes_, list));
    const std::span<const std::byte> all(list);
    if (!RunIsSound(all.first(kPageHeader), node.low)) return Corrupt("a list of free pages");
    return FreePages(all.subspan(kPageHeader));
  }

  bool RunIsSound(std::span<const std::byte> header, std::uint64_t bytes) const {
    return Load<std::uint16_t>(header, 10) == kLmdbOverflow &&
           Load<std::uint32_t>(header, 12) == (kPageHeader - 1 + bytes) / page_bytes_ + 1;
  }

  Status SubTable(std::uint64_t at, std::span<const std::byte> key,
                  std::span<const std::byte> data) {
    if (data.size() != sizeof(Table)) return Corrupt("an entry of the main table");
    const auto table = Load<Table>(data, 0);
    if (table.flags != 0 || table.pad != 0) {
      return Corrupt("a table of an unknown kind");
    }
    return Tree(table, Kind::kValues, at, {reinterpret_cast<const char*>(key.data()), key.size()});
  }

  // A list is its length and the page numbers, descending.
  Status FreePages(std::span<const std::byte> list) {
    if (list.size() < 8) return Corrupt("a list of free pages has no length");
    const auto count = Load<std::uint64_t>(list, 0);
    if (count > list.size() / 8 - 1) return Corrupt("a list of free pages is too long");
    std::uint64_t before = kNoPage;
    for (std::uint64_t i = 1; i <= count; ++i) {
      const auto number = Load<std::uint64_t>(list, static_cast<std::size_t>(8 * i));
      if (number >= before) return Corrupt("a list of free pages is not in order");
      KVCACHE_RETURN_IF_ERROR(Take(number, 1));
      before = number;
    }
    return Status::Ok();
  }

  const int fd_;
  const std::size_t page_bytes_;
  const std::uint64_t last_page_;
  std::vector<bool> taken_;
  const LmdbVisitor& visit_;  // NOLINT: that of CheckLmdbFile
  std::vector<LmdbCounters> wrong_;
};

// Another process may write a meta page while it is read: two equal reads are of a whole one.
Result<std::array<Meta, 2>> ReadSettledMetas(int fd) {
  constexpr int kMaxReads = 1000;
  KVCACHE_ASSIGN_OR_RETURN(auto metas, ReadMetas(fd));
  for (int i = 0; i < kMaxReads; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const auto again, ReadMetas(fd));
    if (std::memcmp(&metas, &again, sizeof(metas)) == 0) return metas;
    metas = again;
  }
  return metas;  // of no use: no transaction lasts as long
}

}  // namespace

Result<LmdbMeta> CheckLmdbMeta(int fd) {
  KVCACHE_ASSIGN_OR_RETURN(const auto metas, ReadMetas(fd));
  struct stat info {};
  if (fstat(fd, &info) != 0) return OsError("read the size of", "the store's file", errno);
  LmdbMeta newest;
  for (const Meta& meta : metas) {
    // A transaction may end with pages that were never written; not with many.
    constexpr std::uint64_t kSlack = 1024;
    const std::uint64_t pages = static_cast<std::uint64_t>(info.st_size) / meta.free.pad;
    if (meta.last_page < 1 || meta.last_page >= pages + kSlack) {
      return Corrupt(StrCat("the file has ", pages, " pages; its index says ", meta.last_page));
    }
    if (newest.page_bytes != 0 && meta.transaction <= newest.transaction) continue;
    newest = {meta.free.pad, meta.last_page, meta.transaction};
  }
  return newest;
}

Result<std::vector<LmdbCounters>> CheckLmdbFile(int fd, std::uint64_t transaction,
                                                const LmdbVisitor& visit) {
  KVCACHE_ASSIGN_OR_RETURN(const auto metas, ReadSettledMetas(fd));
  const std::uint64_t which = transaction % 2;
  const Meta& meta = metas[which];
  if (meta.transaction != transaction) {
    return NotFound(StrCat("no meta page has transaction ", transaction));
  }
  const std::uint64_t at = which * meta.free.pad;
  using Counters = std::vector<LmdbCounters>;
  return kvcache::Guarded("no memory to check the store's index", [&]() -> Result<Counters> {
    Walk walk(fd, meta, visit);
    KVCACHE_RETURN_IF_ERROR(walk.Tree(meta.free, Walk::Kind::kFreeList, at + kFreeTableAt));
    KVCACHE_RETURN_IF_ERROR(walk.Tree(meta.main, Walk::Kind::kTables, at + kMainTableAt));
    return walk.TakeWrong();
  });
}

}  // namespace kvcache::store
