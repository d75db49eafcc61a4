"""A small transformer over bytes: rotary positions, tied embeddings, and a hint about the last two bytes."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_PRIME = 40503  # spreads pairs of bytes over the buckets


class ByteLM(nn.Module):
    """Logits of the next byte at each position of a batch of byte sequences."""

    def __init__(
        self,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        context: int = 128,
        buckets: int = 8192,
        dropout: float = 0.05,
    ) -> None:
        super().__init__()
        self.context = context
        self.buckets = buckets
        self.embed = nn.Embedding(256, width)
        # What two bytes say together would cost a layer to find out; looking it up costs nothing.
        self.embed_pair = nn.Embedding(buckets, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, context, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, 256, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                narrow = name.endswith(("out.weight", "down.weight"))  # they add to the residual stream
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if narrow else 1.0))
        self.head.weight = self.embed.weight

    def forward(self, bytes_in: Tensor) -> Tensor:
        before = F.pad(bytes_in, (1, 0))[:, :-1]
        pair = (before * 256 + bytes_in) * _PRIME % self.buckets
        x = self.dropout(self.embed(bytes_in) + self.embed_pair(pair))
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(self.norm(x)))

    @torch.no_grad()
    def sample(self, prompt: bytes, length: int, generator: torch.Generator) -> bytes:
        """Continue the prompt by ``length`` bytes, drawn from the given generator and no other."""
        self.eval()
        text = list(prompt)
        for _ in range(length):
            logits = self(torch.tensor([text[-self.context :]]))[0, -1]
            text.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
        self.train()
        return bytes(text)


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what came in."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        size = width // heads
        angles = torch.outer(torch.arange(context), 1000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self._rotate(q), self._rotate(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        fed: Tensor = self.dropout(self.down(F.relu(self.up(self.norm2(x))).square()))
        return x + fed

    def _rotate(self, x: Tensor) -> Tensor:
        """Turn each pair of features by an angle that grows with the position."""
        time = x.shape[-2]
        cos, sin = self.cos[:time], self.sin[:time]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
