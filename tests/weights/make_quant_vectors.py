#!/usr/bin/env python3
"""Writes quant_vectors.gguf: for every block type, random blocks and their values as gguf-py's numpy code decodes them.

pip install gguf; python3 make_quant_vectors.py
Tensor "q4_0" holds 3 rows of 512 columns in blocks, "q4_0.values" the same as F32.
"""
import numpy as np
from gguf import GGMLQuantizationType as T, GGUFWriter, quants

ROWS, COLS = 3, 512
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}

rng = np.random.default_rng(7)
writer = GGUFWriter("quant_vectors.gguf", "none")
for kind, halves in HALVES.items():
    block_cols, block_bytes = quants.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * COLS // block_cols, block_bytes), dtype=np.uint8)
    for at in halves:
        scale = (rng.standard_normal(len(blocks)) * 0.05).astype(np.float16)
        scale[0] = np.float16(3e-6)  # a subnormal half
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
    rows = blocks.reshape(ROWS, -1)
    writer.add_tensor(kind.name.lower(), rows, raw_dtype=kind)
    writer.add_tensor(kind.name.lower() + ".values", quants.dequantize(rows, kind).astype(np.float32))
for kind in (T.F16, T.BF16):
    values = rng.standard_normal((ROWS, COLS)).astype(np.float32)
    rows = values.astype(np.float16) if kind == T.F16 else (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = rows.astype(np.float32) if kind == T.F16 else (rows.astype(np.uint32) << 16).view(np.float32)
    writer.add_tensor(kind.name.lower(), rows if kind == T.F16 else rows.view(np.uint8), raw_dtype=None if kind == T.F16 else kind)
    writer.add_tensor(kind.name.lower() + ".values", exact)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
