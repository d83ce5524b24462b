// The pass of an encoder cache: the batch in progress, the one that is prepared, and the outputs that
// the pass puts.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/encoder/encoder_parts.h"
#include "cache/pass/drafts.h"

namespace kvcache {

class EncoderPass {
 public:
  // `parts` must outlive the pass.
  explicit EncoderPass(EncoderParts& parts) : parts_(parts) {}
  // May throw std::bad_alloc.
  void Reset(const CacheOptions& sizes);

  // As in TwoPhaseCache.
  Status Prepare(const Batch& batch, ForwardMode mode);
  void Begin();
  Status PrepareAccept(std::span<const std::int32_t> last);
  void FinishAccept();
  void End();

  // As in EncoderCache.
  Status SetCausal(std::span<const std::int32_t> except);
  Status SetSequence(SequenceId sequence);
  Status Put(const TensorView& k, const TensorView& v);
  Result<DenseKv> Get();
  const Visibility& Visible() const { return visibility_; }

 private:
  static constexpr std::int32_t kNone = -1;

  // A sequence of the batch, and the token that a new output belongs to.
  struct Member {
    SequenceId sequence{};
    Position position = 0;  // of its newest item, or its lowest one
    bool has_item = false;
    bool put = false;
  };

  void AddMember(SequenceId sequence, Position position);
  void NoteItems(const Batch& batch);
  void NoteLengths(const Batch& batch);
  void DescribeVisibility();
  void Describe(std::size_t member);
  Status CaptureBeforePut(const Member& member);
  Status TakeEntry(Member& member, std::int32_t tokens);
  Result<CellRun> CellsForPut(Member& member, std::int32_t tokens);

  EncoderParts& parts_;
  std::optional<Batch> prepared_;
  ForwardMode prepared_mode_ = ForwardMode::kCompute;
  ForwardMode mode_ = ForwardMode::kCompute;
  bool active_ = false;
  Drafts drafts_;
  std::vector<Member> members_;                 // the pass's sequences
  std::vector<std::int32_t> member_of_;         // [sequences]: index into members_, or kNone
  std::size_t current_ = 0;                     // index into members_, selected by SetSequence
  std::vector<Position> positions_;             // [batch]
  std::vector<std::int32_t> history_of_query_;  // [batch]
  std::vector<HistoryRun> runs_;                // [members]
  std::vector<std::span<const HistoryRun>> histories_;
  std::vector<std::uint8_t> bidirectional_;  // [batch]: all
  Visibility visibility_;
  std::vector<std::pair<SequenceId, Position>> accepted_;  // lengths after FinishAccept
};

}  // namespace kvcache
