// Chooses the tokens of each pass: one of each request that generates, with its drafts, then parts of prompts. The
// text that an encoder reads is a pass of its own.
//
// Thread safety: the engine's thread.
// Design: docs/design/scheduler.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/scheduler/pass/composed_pass.h"
#include "engine/scheduler/pass/prefill_pace.h"

namespace kvcache {

class PassComposer {
 public:
  // A pass has at most `max_tokens` tokens, and parts of prompts add at most `step_seconds` to what requests that
  // generate take. `engine` must outlive it. Throws std::bad_alloc.
  PassComposer(const Engine& engine, int max_tokens, double step_seconds);

  // Replaces `pass` by the next one of these requests, without a token if none can continue. Allocates nothing.
  void Compose(std::span<const JobPtr> live, ComposedPass& pass);
  // Learns from a pass that took `seconds` and had this work of prompts.
  void CountPass(const ComposedPass& pass, const PrefillWork& work, double seconds);

  int max_tokens() const { return max_tokens_; }
  // Returns the tokens of each pass that prompts get at least, while any wait.
  std::size_t PromptShare() const;
  // Returns the tokens of prompts that the next pass has beside requests that generate, about.
  Position ExpectedChunk() const { return pace_.last_tokens(); }

 private:
  // Returns the rows of the request whose text the encoder reads in this pass, or null. It alternates with decodes.
  PassRows* NextToEncode(ComposedPass& pass) const;
  // Returns the tokens of the largest picture that a prompt has before it, cannot divide, and has the rows of; 0: none.
  Position NextPicture(const ComposedPass& pass) const;
  // Adds a token of each request that generates, and its drafts. Returns how many tokens are left.
  Position AddDecodes(ComposedPass& pass) const;
  // Adds prompts, at most `room` tokens.
  void AddPrompts(ComposedPass& pass, Position room);
  // Makes prompts_ those of the pass, in the order in which they are read.
  void OrderPrompts(ComposedPass& pass);

  const Engine& engine_;
  const int max_tokens_;
  std::size_t turn_ = 0;            // which request is first among those that generate
  std::vector<PassRows*> prompts_;  // scratch
  PrefillPace pace_;                // of prompts beside decodes
};

}  // namespace kvcache
