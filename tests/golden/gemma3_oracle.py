#!/usr/bin/env python3
"""Gemma 3 270M in float64, from its GGUF file alone: what gemma3_long.json holds.

usage: gemma3_oracle.py gemma-3-270m-q4_k_m.gguf gemma3.json > gemma3_long.json
Needs numpy and the gguf package (ggml-org/llama.cpp, gguf-py).
The prompt is the prompts and replies of gemma3.json, again and again, past twice the window of 512.
"""
import json
import sys

import numpy as np
from gguf import GGUFReader, dequantize

LENGTH = 1200
ROWS = [0, 1, 510, 511, 512, 513, 700, 1022, 1023, 1024, 1025, 1100, 1198, 1199]
LAYERS, HIDDEN, HEADS, DIM, WINDOW, EPS = 18, 640, 4, 256, 512, 1e-6
GLOBAL_EVERY, GLOBAL_BASE, LOCAL_BASE = 6, 1e6, 1e4


def norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def rotate(x, base):
    """x [T, heads, DIM]"""
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(0, DIM, 2) / DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def main():
    tensors = {t.name: t for t in GGUFReader(sys.argv[1]).tensors}

    def weight(name):
        t = tensors[name]
        return dequantize(t.data, t.tensor_type).astype(np.float64)

    ids = [2]
    prompts = json.load(open(sys.argv[2]))["prompts"]
    while len(ids) < LENGTH:
        for prompt in prompts:
            ids += prompt["ids"][1:] + prompt["fp32"]["output_ids"]
    ids = ids[:LENGTH]
    embedding = dequantize(tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type)
    x = embedding[ids].astype(np.float64) * np.sqrt(HIDDEN)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None]
    for layer in range(LAYERS):
        is_global = (layer + 1) % GLOBAL_EVERY == 0
        seen = (distance >= 0) & (is_global | (distance < WINDOW))
        block = f"blk.{layer}."
        h = norm(x, weight(block + "attn_norm.weight"))
        q = (h @ weight(block + "attn_q.weight").T).reshape(LENGTH, HEADS, DIM)
        k = (h @ weight(block + "attn_k.weight").T).reshape(LENGTH, 1, DIM)
        v = h @ weight(block + "attn_v.weight").T
        base = GLOBAL_BASE if is_global else LOCAL_BASE
        q = rotate(norm(q, weight(block + "attn_q_norm.weight")), base)
        k = rotate(norm(k, weight(block + "attn_k_norm.weight")), base)[:, 0]
        mixed = np.empty((LENGTH, HEADS * DIM))
        for head in range(HEADS):
            scores = np.where(seen, q[:, head] @ k.T / np.sqrt(DIM), -np.inf)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head * DIM : (head + 1) * DIM] = scores / scores.sum(axis=1, keepdims=True) @ v
        x = x + norm(mixed @ weight(block + "attn_output.weight").T, weight(block + "post_attention_norm.weight"))
        h = norm(x, weight(block + "ffn_norm.weight"))
        gate = h @ weight(block + "ffn_gate.weight").T
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        up = h @ weight(block + "ffn_up.weight").T
        x = x + norm((gate * up) @ weight(block + "ffn_down.weight").T, weight(block + "post_ffw_norm.weight"))
    x = norm(x[ROWS], weight("output_norm.weight"))
    logits = np.concatenate([x @ part.astype(np.float64).T for part in np.array_split(embedding, 16)], axis=1)
    rows = []
    for position, row in zip(ROWS, logits):
        best = np.argsort(-row)[:10]
        some = np.arange(7, len(row), 26213)
        rows.append({
            "position": position,
            "max_abs": round(float(np.abs(row).max()), 6),
            "logits": [[int(i), round(float(row[i]), 6)] for i in [*best, *some]],
        })
    print(json.dumps({"ids": ids, "rows": rows}))


main()
