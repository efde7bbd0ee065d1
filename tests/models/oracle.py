"""A decoder in plain numpy, float64, one sequence at a time and without a cache: every position recomputed."""

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def turned(head, pos, theta, factors):
    """One head of one row: pair j is (j, j + half), turned by pos / theta^(j / half) / factor."""
    head, half = head.copy(), len(factors)
    for j in range(half):
        angle = pos / theta ** (j / half) / factors[j]
        a, b = head[j], head[j + half]
        head[j], head[j + half] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return head


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


class Reference:
    """`logits(tokens)` [T, V]; weights under llama.cpp's names, q and k in NEOX order."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}

    def project(self, x, name):
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def heads(self, x, block, part, positions):
        """Heads of q, k or v [T, H, D]; of q and k normed and turned."""
        c, name = self.config, f"blk.{block}.attn_{part}"
        heads = self.project(x, name).reshape(len(x), -1, c.head_dim)
        if part == "v":
            return heads
        heads = self.norm(heads, f"{name}_norm")
        window = bool(c.swa_layers) and c.swa_layers[block]
        theta, scale = (c.rope_theta_swa, c.rope_scale_swa) if window else (c.rope_theta, c.rope_scale)
        factors = self.weights.get("rope_freqs.weight", np.ones(c.rope_dim // 2)) / scale
        return np.stack(
            [[turned(h, p, theta, factors) for h in row] for row, p in zip(heads, positions, strict=True)]
        )

    def attention(self, x, block, positions, ends):
        c = self.config
        q, k, v = (self.heads(x, block, part, positions) for part in "qkv")
        out = np.zeros((len(x), c.n_heads, c.head_dim))
        scale = c.head_dim**-0.5 if c.attn_scale is None else c.attn_scale
        for i in range(len(x)):
            first, end = max(0, i + 1 - c.n_swa) if c.swa_layers and c.swa_layers[block] else 0, ends[i]
            for h in range(c.n_heads):
                shared = h * c.n_kv_heads // c.n_heads
                score = capped(k[first:end, shared] @ q[i, h] * scale, c.attn_softcap)
                weight = np.exp(score - score.max())
                out[i, h] = weight @ v[first:end, shared] / weight.sum()
        return self.project(out.reshape(len(x), -1), f"blk.{block}.attn_output")

    def feed_forward(self, x, block):
        activation = {"silu": silu, "gelu": gelu}[self.config.activation]
        gate = activation(self.project(x, f"blk.{block}.ffn_gate"))
        return self.project(gate * self.project(x, f"blk.{block}.ffn_up"), f"blk.{block}.ffn_down")

    def norm(self, x, name):
        """Normed where the model has such a norm."""
        weight = self.weights.get(f"{name}.weight")
        return x if weight is None else rms_norm(x, weight, self.config.norm_eps)

    def logits(self, tokens, positions=None, ends=None):
        """Row i sees the rows before ends[i], itself and those before it where there are none."""
        ends = range(1, len(tokens) + 1) if ends is None else ends
        positions = range(len(tokens)) if positions is None else positions
        x = self.weights["token_embd.weight"][list(tokens)]
        if self.config.scale_embd:
            x = x * np.sqrt(self.config.n_embd)
        for block in range(self.config.n_layers):
            name = f"blk.{block}"
            gathered = self.attention(self.norm(x, f"{name}.attn_norm"), block, positions, ends)
            x = x + self.norm(gathered, f"{name}.post_attention_norm")
            added = self.feed_forward(self.norm(x, f"{name}.ffn_norm"), block)
            x = x + self.norm(added, f"{name}.post_ffw_norm")
        head = "token_embd.weight" if self.config.tie_embeddings else "output.weight"
        return capped(self.norm(x, "output_norm") @ self.weights[head].T, self.config.logit_softcap)
