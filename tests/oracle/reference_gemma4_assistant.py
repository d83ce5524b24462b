"""gemma4's draft head (the architecture gemma4-assistant) in float64.

    x      = Wpre · (√H · target_embed[token] | state)
    x     += gemma4's layers, with queries alone: k and v are those of the target's last own layer of
             the same kind
    n      = rms(x) * output_norm
    logits = Wembed · n
    state  = Wpost · n                  for the next draft

The first state is the target's, of the last evaluated token, after its last norm. All drafts are at the
position p behind that token. A layer with a window of W sees the keys p - W + 1 ... p - 1: the query's
own token, which counts, has no key.

Sources: Hugging Face's modeling_gemma4_assistant.py; names and keys as llama.cpp's converter writes
them.
"""

import numpy as np

import reference
import reference_gemma4
import rope


class Reference(reference_gemma4.Reference):
    def __init__(self, path, target):
        super().__init__(path)
        self._target = target

    def drafts(self, tokens, following):
        """Returns logits [drafts, vocab] after tokens and each of the tokens that follow them."""
        states, kept = self._target.final_states(tokens)
        self._position = len(tokens)
        state = states[-1:]
        rows = []
        for token in following:
            embedded = self._target.scaled_embedding(token)[None]
            x = self._project("nextn.pre_projection", np.concatenate([embedded, state], axis=-1))
            for layer in range(self.layers):
                x = self._gemma_layer(x, layer, kept, None)
            n = self._norm(x, self.OUTPUT_NORM)
            rows.append((n @ self._weights["token_embd.weight"].T)[0])
            state = self._project("nextn.post_projection", n)
        return np.array(rows)

    def _attend(self, block, x, layer, kept):
        windowed = self.windowed[layer]
        q = self._norm(self._project(block + "attn_q", x).reshape(1, self.heads, -1),
                       block + "attn_q_norm")
        q = rope.rotate(q, *self._rotation(layer), False, first=self._position)
        k, v = kept[windowed]
        if windowed:
            first = max(0, self._position - self.window + 1)
            k, v = k[first:], v[first:]
        out = reference.attend(q, k, v, np.ones((1, len(k)), bool), 1.0)
        return self._project(block + "attn_output", out.reshape(1, -1))
