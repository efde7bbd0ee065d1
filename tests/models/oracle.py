"""A llama decoder in plain numpy, float64, one sequence at a time and without a cache: every position recomputed."""

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def turned(head, pos, config, factors):
    """One head of one row: pair j is (j, j + half), turned by pos / theta^(j / half) / factor."""
    head, half = head.copy(), config.rope_dim // 2
    for j in range(half):
        angle = pos / config.rope_theta ** (j / half) / factors[j]
        a, b = head[j], head[j + half]
        head[j], head[j + half] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return head


class Reference:
    """`logits(tokens)` [T, V]; weights under llama.cpp's names, q and k in NEOX order."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}

    def project(self, x, name):
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def heads(self, x, name, n_heads, positions):
        c = self.config
        heads = self.project(x, name).reshape(len(x), n_heads, c.head_dim)
        if positions is None:
            return heads
        factors = self.weights.get("rope_freqs.weight", np.ones(c.rope_dim // 2))
        return np.stack(
            [[turned(h, p, c, factors) for h in row] for row, p in zip(heads, positions, strict=True)]
        )

    def attention(self, x, block, positions):
        c = self.config
        q = self.heads(x, f"blk.{block}.attn_q", c.n_heads, positions)
        k = self.heads(x, f"blk.{block}.attn_k", c.n_kv_heads, positions)
        v = self.heads(x, f"blk.{block}.attn_v", c.n_kv_heads, None)
        out = np.zeros((len(x), c.n_heads, c.head_dim))
        for i in range(len(x)):
            for h in range(c.n_heads):
                shared = h * c.n_kv_heads // c.n_heads
                score = k[: i + 1, shared] @ q[i, h] / np.sqrt(c.head_dim)
                weight = np.exp(score - score.max())
                out[i, h] = weight @ v[: i + 1, shared] / weight.sum()
        return self.project(out.reshape(len(x), -1), f"blk.{block}.attn_output")

    def feed_forward(self, x, block):
        gate = self.project(x, f"blk.{block}.ffn_gate")
        gate = gate / (1 + np.exp(-gate))
        return self.project(gate * self.project(x, f"blk.{block}.ffn_up"), f"blk.{block}.ffn_down")

    def norm(self, x, name):
        return rms_norm(x, self.weights[f"{name}.weight"], self.config.norm_eps)

    def logits(self, tokens, positions=None):
        positions = range(len(tokens)) if positions is None else positions
        x = self.weights["token_embd.weight"][list(tokens)]
        for block in range(self.config.n_layers):
            x = x + self.attention(self.norm(x, f"blk.{block}.attn_norm"), block, positions)
            x = x + self.feed_forward(self.norm(x, f"blk.{block}.ffn_norm"), block)
        head = "token_embd.weight" if self.config.tie_embeddings else "output.weight"
        return self.norm(x, "output_norm") @ self.weights[head].T
