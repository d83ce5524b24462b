#include "engine/packed/packed_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/strings.h"

namespace kvcache::packed_format_test {
namespace {

using packed::kPieceBytes;
using packed::PackedTable;
using ::testing::HasSubstr;

constexpr FileIdentity kModel{
    .device = 1, .inode = 2, .bytes = 3, .modified_ns = -4, .changed_ns = 5};
constexpr std::uint64_t kLayout = 7;

// A file of two weights, whose second one is in two pieces.
struct Built {
  PackedTable table{.model = kModel, .digest = 99, .layout = kLayout, .path = "/models/one.gguf"};
  std::vector<std::byte> bytes;

  Built() {
    const std::uint64_t sizes[] = {5000, kPieceBytes};
    const packed::Places places = packed::PlacesOf(sizes);
    table.end = places.end;
    table.entries = {{{0, 64, 32, 16, 1}, places.at[0], sizes[0]},
                     {{1, 128, 64, 48, 3}, places.at[1], sizes[1]}};
    table.sums = {11, 12};
    const packed::TableBytes written = packed::Write(table);
    bytes.resize(packed::FileBytes(places));
    EXPECT_EQ(written.table.size(), bytes.size() - places.end);
    std::memcpy(bytes.data(), written.header.data(), written.header.size());
    std::memcpy(bytes.data() + places.end, written.table.data(), written.table.size());
    header_bytes = written.header.size();
  }
  std::size_t header_bytes = 0;

  packed::PackedSource Source() const {
    return {bytes.size(), [this](std::uint64_t at, std::span<std::byte> into) {
              std::ranges::copy(std::span(bytes).subspan(at, into.size()), into.begin());
              return Status::Ok();
            }};
  }
  Status ReadAs(const FileIdentity& model = kModel, std::uint64_t layout = kLayout) const {
    return packed::Read(Source(), model, layout).status();
  }
};

TEST(PackedFormat, PanelsBeginAtPagesBehindTheFirstPiece) {
  const std::uint64_t sizes[] = {1, 4096, 4097, 64};
  const packed::Places places = packed::PlacesOf(sizes);
  const std::vector<std::uint64_t> at = {kPieceBytes, kPieceBytes + 4096, kPieceBytes + 8192,
                                         kPieceBytes + 16384};
  EXPECT_EQ(places.at, at);
  EXPECT_EQ(places.end, kPieceBytes + 20480);
  EXPECT_EQ(places.pieces, 1u);
  EXPECT_EQ(packed::PlacesOf({}).pieces, 0u);
  const std::uint64_t two[] = {kPieceBytes, 1};
  EXPECT_EQ(packed::PlacesOf(two).pieces, 2u);
}

TEST(PackedFormat, IsReadAsItWasWritten) {
  const Built file;
  const auto read = packed::Read(file.Source(), kModel, kLayout);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->digest, 99u);
  EXPECT_EQ(read->end, file.table.end);
  EXPECT_EQ(read->sums, file.table.sums);
  EXPECT_EQ(read->path, "/models/one.gguf");
  EXPECT_EQ(packed::ReadModelPath(file.Source()).value(), "/models/one.gguf");
  ASSERT_EQ(read->entries.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read->entries[i].key, file.table.entries[i].key);
    EXPECT_EQ(read->entries[i].at, file.table.entries[i].at);
    EXPECT_EQ(read->entries[i].bytes, file.table.entries[i].bytes);
  }
}

TEST(PackedFormat, EachByteOfHeaderAndTableCounts) {
  Built file;
  const auto flip = [&](std::size_t at) {
    file.bytes[at] ^= std::byte{0x10};
    EXPECT_FALSE(file.ReadAs().ok()) << at;
    file.bytes[at] ^= std::byte{0x10};
  };
  for (std::size_t at = 0; at < file.header_bytes; ++at) flip(at);
  for (std::size_t at = file.table.end; at < file.bytes.size(); ++at) flip(at);
  EXPECT_TRUE(file.ReadAs().ok());
}

TEST(PackedFormat, CutFilesAreRefused) {
  Built file;
  for (const std::size_t size : {file.bytes.size() - 1, file.table.end, kPieceBytes,
                                 kPieceBytes - 1, std::size_t{8}, std::size_t{0}}) {
    file.bytes.resize(size);
    EXPECT_EQ(file.ReadAs().code(), StatusCode::kCorrupt) << size;
  }
  EXPECT_THAT(std::string(file.ReadAs().message()), HasSubstr("less than its header takes"));
}

TEST(PackedFormat, SaysWhatIsForeign) {
  Built file;
  FileIdentity other = kModel;
  for (const auto change : std::initializer_list<void (*)(FileIdentity&)>{
           [](FileIdentity& it) { it.inode ^= 1; }, [](FileIdentity& it) { it.bytes ^= 1; },
           [](FileIdentity& it) { it.modified_ns ^= 1; },
           [](FileIdentity& it) { it.changed_ns ^= 1; }}) {
    other = kModel;
    change(other);
    EXPECT_EQ(file.ReadAs(other).code(), StatusCode::kNotFound);
  }
  EXPECT_EQ(file.ReadAs(other).message(), "it was made of another model's file");
  other = kModel;
  other.device ^= 1;  // the system gives devices numbers anew
  EXPECT_TRUE(file.ReadAs(other).ok());
  EXPECT_EQ(file.ReadAs(kModel, 8).code(), StatusCode::kUnsupported);
  EXPECT_EQ(file.ReadAs(kModel, 8).message(), "its panels have layout 7; this program uses 8");
  file.bytes[8] = std::byte{3};
  EXPECT_EQ(file.ReadAs().code(), StatusCode::kUnsupported);
  EXPECT_EQ(file.ReadAs().message(), "it has version 3 of the format; this program reads 2");
}

TEST(PackedFormat, APathThatIsTooLongIsNotKnown) {
  Built file;
  for (const std::size_t size :
       {packed::kHeaderBytes - 15 * 8, packed::kHeaderBytes - 15 * 8 + 1}) {
    file.table.path = std::string(size, 'x');
    const packed::TableBytes written = packed::Write(file.table);
    ASSERT_LE(written.header.size(), packed::kHeaderBytes);
    std::memcpy(file.bytes.data(), written.header.data(), written.header.size());
    const bool fits = size == packed::kHeaderBytes - 15 * 8;
    EXPECT_EQ(packed::ReadModelPath(file.Source()).value(), fits ? file.table.path : "");
  }
}

// A source that fails stands in for a bad block.
TEST(PackedFormat, WhatTheDiskDoesNotGiveBackIsAnError) {
  const Built file;
  for (const std::uint64_t bad : {std::uint64_t{0}, file.table.end}) {
    packed::PackedSource source = file.Source();
    source.read = [&, read = source.read](std::uint64_t at, std::span<std::byte> into) {
      return at == bad ? Status(StatusCode::kCorrupt, "bad block") : read(at, into);
    };
    EXPECT_EQ(packed::Read(source, kModel, kLayout).status().message(), "bad block");
  }
}

// A table that a faulty writer made: its hashes are right.
TEST(PackedFormat, PanelsLieBetweenHeaderAndTable) {
  const auto refused = [](std::uint64_t at, std::uint64_t bytes) {
    Built file;
    file.table.entries[1].at = at;
    file.table.entries[1].bytes = bytes;
    const packed::TableBytes written = packed::Write(file.table);
    std::memcpy(file.bytes.data(), written.header.data(), written.header.size());
    std::memcpy(file.bytes.data() + file.table.end, written.table.data(), written.table.size());
    return file.ReadAs().code() == StatusCode::kCorrupt;
  };
  const std::uint64_t end = Built().table.end;
  EXPECT_FALSE(refused(kPieceBytes, end - kPieceBytes));
  EXPECT_TRUE(refused(kPieceBytes, end - kPieceBytes + 1));
  EXPECT_TRUE(refused(kPieceBytes - 4096, 64));
  EXPECT_TRUE(refused(kPieceBytes + 64, 64));
  EXPECT_TRUE(refused(end + 4096, 0));
  EXPECT_TRUE(refused(kPieceBytes, ~std::uint64_t{0}));
}

}  // namespace
}  // namespace kvcache::packed_format_test
