"""gemma3n in float64.

    x_0 = √hidden_size · embed[token];  x_i = P_i x_0 scaled to the length of x_0, i = 1, 2, 3
    per layer
      r(y) = tanh(Wrouter · rms(y) * router_norm / hidden_size)
      p_b  = x_b + Σ_a (Wpredict r(x_0))[4 b + a] x_a
      n    = rms(p_0) * attn_norm;  l = n + rms(Wright Wleft n) * laurel_post_norm
      y    = (p_0 + rms(Wo · attention(n)) * post_attention_norm + l) / √2
      y   += rms(Wdown · (gelu(s(Wgate m)) * Wup m)) * post_ffw_norm,  m = rms(y) * ffn_norm
      x_b  = p_b + (1 + (Wcorrect r(y))_b) (y - p_0)
      x_b += rms(Wproj · (gelu(Wingate (x_0 * correct_scale)) * input)) * post_norm for b > 0
    logits = cap(Wout · (rms(mean of x_0 and U_i x_i scaled to the length of x_0) * output_norm))

    s(g)       max(g - mean - m · deviation, 0) in layers with a finite m, with n - 1 in the deviation
    attention  and inputs as gemma4's, with one head size; 20 layers have keys and values of their own

Sources: Hugging Face's modeling_gemma3n.py; names and keys as llama.cpp's converter writes them.
"""

import numpy as np

import reference
import reference_gemma4
from reference_gemma import cap, gelu

STATES = 4
SPARSITY = float(np.float32(1.6448533535))


def length(x):
    return np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


class Reference(reference_gemma4.Reference):
    def __init__(self, path):
        reference.Decoder.__init__(self, path)
        self.hidden_size = self._key("embedding_length")
        self.window = self._key("attention.sliding_window")
        period = self._key("attention.sliding_window_pattern", 5)
        self.windowed = (period if isinstance(period, list) else
                         [not period or i % period < period - 1 for i in range(self.layers)])
        self.own = self.layers - self._key("attention.shared_kv_layers")
        self.input_size = self._key("embedding_length_per_layer_input")
        sparse = [SPARSITY] * min(self.layers, 10) + [-np.inf] * max(self.layers - 10, 0)
        self.sparsity = self._key("activation_sparsity_scale", sparse)
        self.window_dim = self.head_dim

    def logits(self, tokens):
        return cap(self._output(self._states(tokens)[0]), self._key("final_logit_softcapping", 30.0))

    def _states(self, tokens):
        tokens = np.asarray(tokens)
        first = np.sqrt(self.hidden_size) * self._weights["token_embd.weight"][tokens]
        inputs = self._inputs(first, tokens)
        others = [first @ matrix.T for matrix in self._weights["altup_proj.weight"]]
        x = np.stack([first, *(other * length(first) / length(other) for other in others)])
        kept = {}
        for layer in range(self.layers):
            x = self._altup_layer(x, layer, kept, inputs[:, layer])
        others = [state @ matrix.T for state, matrix in
                  zip(x[1:], self._weights["altup_unembd_proj.weight"], strict=True)]
        h = x[0] + sum(other * length(x[0]) / length(other) for other in others)
        return h / STATES, kept

    def _router(self, block, y):
        return np.tanh(self._project(block + "altup_router", self._norm(y, block + "altup_router_norm")
                                     / self.hidden_size))

    def _sparse(self, gates, layer):
        deviations = self.sparsity[layer]
        if not np.isfinite(deviations):
            return gates
        cutoff = (gates.mean(axis=-1, keepdims=True)
                  + deviations * gates.std(axis=-1, keepdims=True, ddof=1))
        return np.maximum(gates - cutoff, 0)

    def _altup_layer(self, x, layer, kept, layer_input):
        block = f"blk.{layer}."
        factors = self._project(block + "altup_predict_coef", self._router(block, x[0]))
        p = x + np.einsum("tba,ath->bth", factors.reshape(-1, STATES, STATES), x)
        n = self._norm(p[0], block + "attn_norm")
        low = self._project(block + "laurel_r", self._project(block + "laurel_l", n))
        laurel = n + self._norm(low, block + "laurel_post_norm")
        attended = self._norm(self._attend(block, n, layer, kept), block + "post_attention_norm")
        y = (p[0] + attended + laurel) / np.sqrt(2)
        m = self._norm(y, block + "ffn_norm")
        gate = gelu(self._sparse(self._project(block + "ffn_gate", m), layer))
        out = self._project(block + "ffn_down", gate * self._project(block + "ffn_up", m))
        y = y + self._norm(out, block + "post_ffw_norm")
        factors = 1 + self._project(block + "altup_correct_coef", self._router(block, y))
        x = p + factors.T[:, :, None] * (y - p[0])
        scaled = x[0] * self._weights[block + "altup_correct_scale.weight"]
        gated = gelu(self._project(block + "inp_gate", scaled)) * layer_input
        x[1:] += self._norm(self._project(block + "proj", gated), block + "post_norm")
        return x
