"""gemma4 in float64.

    h   = √hidden_size · embed[token]
    h  += rms(Wo · attention) * post_attention_norm
    h  += rms(Wdown · (gelu(Wgate m) * Wup m)) * post_ffw_norm
          with experts, the inner result is rms(it) * post_ffw_norm_1
              + rms(Σ p_e s_e expert_e(rms(h) * pre_ffw_norm_2)) * post_ffw_norm_2
    h  += rms(Wproj · (gelu(Wingate h) * input)) * post_norm      if layers have inputs
    h  *= layer_output_scale
    logits = cap(Wout · (rms(h) * output_norm))

    attention  q and k of each head normed, then rotated; v normed without a weight; scores are q · k.
               Without a V matrix, v is the K matrix's product. Layers with a window have their own
               head size and frequencies. The last layers use k and v of the last layer of the same
               kind that has them
    experts    p = softmax(Wrouter · (rms(h) * scale / √hidden_size)) over the chosen ones; experts have GELU
               gates, gate and up in one matrix
    input      layer i gets (rms((Wmodel · h0 / √hidden_size)_i) * norm + √P · table[token]_i) / √2,
               with h0 the scaled embedding and P values for each layer

Sources: Hugging Face's modeling_gemma4.py; names and keys as llama.cpp's converter writes them.
"""

import numpy as np

import reference
import rope
from reference_gemma import cap, gelu


class Reference(reference.Decoder):
    def __init__(self, path):
        super().__init__(path)
        self.hidden_size = self._key("embedding_length")
        self.window = self._key("attention.sliding_window")
        self.windowed = self._key("attention.sliding_window_pattern")
        self.window_dim = self._key("attention.key_length_swa", self.head_dim)
        self.own = self.layers - self._key("attention.shared_kv_layers", 0)
        self.input_size = self._key("embedding_length_per_layer_input", 0)

    def _per_layer(self, key, layer):
        value = self._key(key)
        return value[layer] if isinstance(value, list) else value

    def logits(self, tokens):
        return cap(self._output(self._states(tokens)[0]),
                   self._key("final_logit_softcapping", 0.0))

    def final_states(self, tokens):
        """Returns the states [tokens, hidden_size] after the last norm, and (k, v) by kind of layer."""
        h, kept = self._states(tokens)
        return self._norm(h, self.OUTPUT_NORM), kept

    def scaled_embedding(self, token):
        return np.sqrt(self.hidden_size) * self._weights["token_embd.weight"][token]

    def _states(self, tokens):
        tokens = np.asarray(tokens)
        h = np.sqrt(self.hidden_size) * self._weights["token_embd.weight"][tokens]
        inputs = self._inputs(h, tokens) if self.input_size else None
        kept = {}
        for layer in range(self.layers):
            h = self._gemma_layer(h, layer, kept, None if inputs is None else inputs[:, layer])
        return h, kept

    def _inputs(self, h, tokens):
        shape = (len(tokens), self.layers, self.input_size)
        p = self._project("per_layer_model_proj", h / np.sqrt(self.hidden_size)).reshape(shape)
        e = np.sqrt(self.input_size) * self._weights["per_layer_token_embd.weight"][tokens]
        return (self._norm(p, "per_layer_proj_norm") + e.reshape(shape)) / np.sqrt(2)

    def _gemma_layer(self, h, layer, kept, layer_input):
        block = f"blk.{layer}."
        y = self._attend(block, self._norm(h, block + "attn_norm"), layer, kept)
        h = h + self._norm(y, block + "post_attention_norm")
        m = self._norm(h, block + "ffn_norm")
        gate, up = self._project(block + "ffn_gate", m), self._project(block + "ffn_up", m)
        y = self._project(block + "ffn_down", gelu(gate) * up)
        if block + "ffn_gate_inp.weight" in self._weights:
            y = (self._norm(y, block + "post_ffw_norm_1")
                 + self._norm(self._gemma_experts(block, h), block + "post_ffw_norm_2"))
        h = h + self._norm(y, block + "post_ffw_norm")
        if layer_input is not None:
            y = gelu(self._project(block + "inp_gate", h)) * layer_input
            h = h + self._norm(self._project(block + "proj", y), block + "post_norm")
        return h * self._weights.get(block + "layer_output_scale.weight", 1.0)

    def _gemma_experts(self, block, h):
        unit = h / np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + self.epsilon)
        routed = unit * self._weights[block + "ffn_gate_inp.scale"] / np.sqrt(self.hidden_size)
        scores = self._project(block + "ffn_gate_inp", routed)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :self.experts_used]
        p = np.take_along_axis(scores, chosen, axis=-1)
        p = np.exp(p - p.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        m = self._norm(h, block + "pre_ffw_norm_2")
        both, down = (self._weights[f"{block}ffn_{name}_exps.weight"] for name in ("gate_up", "down"))
        out = np.zeros_like(h)
        for expert in range(scores.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            gate, up = np.split(m[token] @ both[expert].T, 2, axis=-1)
            y = (gelu(gate) * up) @ down[expert].T
            y = y * self._weights[block + "ffn_down_exps.scale"][expert]
            out[token] += p[token, place][:, None] * y
        return out

    def _rotation(self, layer):
        if self.windowed[layer]:
            return rope.plain(self._key("rope.freq_base_swa", 10000.0), self.window_dim), 1.0
        return super()._rotation(layer)

    def _own_keys_and_values(self, block, x, layer):
        kv_heads = self._per_layer("attention.head_count_kv", layer)
        k = self._project(block + "attn_k", x).reshape(len(x), kv_heads, -1)
        v = k
        if block + "attn_v.weight" in self._weights:
            v = self._project(block + "attn_v", x).reshape(len(x), kv_heads, -1)
        v = v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + self.epsilon)
        k = rope.rotate(self._norm(k, block + "attn_k_norm"), *self._rotation(layer), False)
        return k, v

    def _attend(self, block, x, layer, kept):
        kind = self.windowed[layer]
        if layer < self.own:
            kept[kind] = self._own_keys_and_values(block, x, layer)
        q = self._project(block + "attn_q", x).reshape(len(x), self.heads, -1)
        q = rope.rotate(self._norm(q, block + "attn_q_norm"), *self._rotation(layer), False)
        seen = reference.seen_keys(len(x), self.window if kind else 0)
        out = reference.attend(q, *kept[kind], seen, 1.0)
        return self._project(block + "attn_output", out.reshape(len(x), -1))
