// A tower for tests: a picture's rows are a function of the bytes of its file. "p7 whole 16" is a picture of 16 cells that
// see each other; without "whole" they do not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "engine/pictures/picture_tower.h"

namespace kvcache::testing {

class ScriptedTower final : public PictureTower {
 public:
  explicit ScriptedTower(int row_size, int steps = 3) : row_size_(row_size), steps_(steps) {}

  static constexpr int kColumns = 8;  // of pictures that have so many cells, or a multiple

  struct Counts {
    int begun = 0;
    int steps = 0;
    int released = 0;
  };
  // How often the tower worked.
  const Counts& counts() const { return *counts_; }
  std::shared_ptr<Counts> shared_counts() const { return counts_; }

  Result<PicturePtr> Prepare(std::span<const std::byte> file, std::string_view) const override {
    std::istringstream text(std::string(reinterpret_cast<const char*>(file.data()), file.size()));
    std::string name, word;
    PictureShape shape;
    text >> name >> word;
    if (word == "whole") {
      shape.is_whole = true;
      text >> word;
    }
    shape.cells = std::stoi(word);
    if (shape.cells % kColumns == 0) {
      shape.columns = kColumns;
      shape.rows = shape.cells / kColumns;
    }
    return PicturePtr(std::make_shared<Picture>(Sha256Of(file), shape));
  }
  PictureMarks marks() const override { return {.before = "", .after = "", .in_template = ""}; }
  bool IsOf(std::string_view architecture) const override {
    return architecture == "gemma3" || architecture == "qwen2vl";
  }
  int row_size() const override { return row_size_; }
  bool Takes(const Picture&) const override { return true; }

  Status Begin(const Picture& picture) override {
    if (picture.name() == fails_) return {StatusCode::kInternal, "the tower fails"};
    ++counts_->begun;
    left_ = steps_;
    rows_ = RowsOf(picture, row_size_);
    return Status::Ok();
  }
  Status Step(int) override {
    ++counts_->steps;
    --left_;
    if (on_step_) on_step_();
    return Status::Ok();
  }
  bool done() const override { return left_ == 0; }
  void CopyRows(float* rows) const override { std::copy(rows_.begin(), rows_.end(), rows); }
  void Release() override {
    ++counts_->released;
    left_ = 0;
  }

  void FailAt(std::string name) { fails_ = std::move(name); }
  void OnStep(std::function<void()> on_step) { on_step_ = std::move(on_step); }

  static std::vector<float> RowsOf(const Picture& picture, int row_size) {
    std::mt19937 random(static_cast<std::uint32_t>(picture.ids().front()));
    std::vector<float> rows(static_cast<std::size_t>(row_size) *
                            static_cast<std::size_t>(picture.cells()));
    for (float& value : rows) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    return rows;
  }

 private:
  const int row_size_;
  const int steps_;
  int left_ = 0;
  std::vector<float> rows_;
  std::string fails_;
  std::function<void()> on_step_;
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace kvcache::testing
