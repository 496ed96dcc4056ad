"""Log-probabilities of a Llama, in NumPy from a GGUF file: what lm-eval's scores are compared with. It shares nothing with coppice or
llama.cpp but the file; the weights are dequantised by the `gguf` package, and activations stay floats."""

import numpy as np
from gguf import GGUFReader, dequantize


class Llama:
    def __init__(self, path):
        reader = GGUFReader(path)
        self._weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float32) for tensor in reader.tensors}

        def fact(name):
            return reader.get_field(f"llama.{name}").contents()

        self._layers, self._heads, self._kv_heads = fact("block_count"), fact("attention.head_count"), fact("attention.head_count_kv")
        self._eps, self._theta = fact("attention.layer_norm_rms_epsilon"), fact("rope.freq_base")

    def _norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self._eps) * self._weights[name]

    def _rotated(self, x):
        """x: tokens, heads, values; GGUF's Llama rotates neighbours."""
        tokens, _, size = x.shape
        angles = np.outer(np.arange(tokens), self._theta ** (-np.arange(0, size, 2) / size))[:, None, :]
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)], -1).reshape(x.shape)

    def _attended(self, x, layer):
        q, k, v = (x @ self._weights[f"{layer}.attn_{name}.weight"].T for name in "qkv")
        q = self._rotated(q.reshape(len(x), self._heads, -1))
        k = self._rotated(k.reshape(len(x), self._kv_heads, -1)).repeat(self._heads // self._kv_heads, 1)
        v = v.reshape(len(x), self._kv_heads, -1).repeat(self._heads // self._kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores[:, np.triu_indices(len(x), 1)[0], np.triu_indices(len(x), 1)[1]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1) @ self._weights[f"{layer}.attn_output.weight"].T

    def logprobs(self, ids):
        """Of each token but the first, given those before it: (logprob, whether it was the most likely one)."""
        x = self._weights["token_embd.weight"][ids]
        for i in range(self._layers):
            layer = f"blk.{i}"
            x = x + self._attended(self._norm(x, f"{layer}.attn_norm.weight"), layer)
            h = self._norm(x, f"{layer}.ffn_norm.weight")
            gate, up = (h @ self._weights[f"{layer}.ffn_{name}.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self._weights[f"{layer}.ffn_down.weight"].T
        logits = self._norm(x, "output_norm.weight") @ self._weights.get("output.weight", self._weights["token_embd.weight"]).T
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        return [(float(row[i]), bool(row.argmax() == i)) for row, i in zip(logits, ids[1:])]
