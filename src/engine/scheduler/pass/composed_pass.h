// The tokens of one forward pass, and which rows belong to which request. PassComposer fills it, PassRunner runs
// it, DraftRound takes drafts out of it and says which ones stay.
//
//   tokens      7 | 9 3 3 | 5 6 2 4        a token, a token with two drafts, four of a prompt
//   rows[0]     ^ |       |                .tokens = 1
//   rows[1]       | ^     |                .tokens = 3, .drafted = 2
//   rows[2]       |       |       ^        .tokens = 4              ^: .last_row
//
// Thread safety: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler/job.h"
#include "kvcache/types.h"

namespace kvcache {

// One request's part of a pass.
struct PassRows {
  Job* job = nullptr;
  Position tokens = 0;         // in the pass, with drafts; 0: the request is not in it
  Position drafted = 0;        // drafts of them
  bool samples = false;        // the pass leaves logits to draw from
  bool reads_prompt = false;   // the tokens are of a prompt that the decoder reads
  std::size_t last_row = 0;    // batch index of the last token before the drafts
  std::size_t logits_row = 0;  // of its first row with logits; set by PassRunner
  // Set by DraftRound, for a request with drafts.
  Position kept = 0;      // tokens of it that stay in the sequence
  bool continues = true;  // the text continues after what was drawn
};

struct ComposedPass {
  std::vector<std::int32_t> tokens;
  std::vector<Position> positions;
  std::vector<SequenceId> sequences;
  std::vector<InputRows> input_rows;  // of the pictures in the pass, ascending
  std::vector<PassRows> rows;         // [live requests], in their order
  Job* encoding = nullptr;  // the encoder reads this request's text in the pass; null: none

  // Throws std::bad_alloc.
  void Reserve(std::size_t max_tokens, std::size_t max_requests);
  bool empty() const { return tokens.empty(); }
  bool has_drafts() const;

  // Begins a pass in which no request has tokens. Allocates nothing within what was reserved.
  void Clear(std::span<const JobPtr> live);
  // Adds the next `count` tokens of a request that has none in the pass. REQUIRES: it has the rows of a picture in them.
  void Add(PassRows& of, Position count);
  // Adds what was proposed for a request behind its tokens.
  void AddDrafts(PassRows& of);
  // Takes the drafts of all requests out, and forgets the proposals. The other tokens stay.
  void RemoveDrafts();
  // Takes all tokens out.
  void RemoveTokens();

 private:
  void AddInputRows(const Job& job, Position count);
};

}  // namespace kvcache
