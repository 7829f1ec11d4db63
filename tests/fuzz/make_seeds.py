#!/usr/bin/env python3
"""Writes the seed corpora of the file readers from tests/golden: corpus/{gguf,safetensors,config,session}. Needs gguf (PyPI)."""
import hashlib
import json
import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFValueType, GGUFWriter, quants

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / "golden"


def config_seeds():
    for directory in sorted((GOLDEN / "models").iterdir()) + sorted((GOLDEN / "refuse").iterdir()):
        if (directory / "config.json").exists():
            (HERE / "corpus/config" / directory.name).write_bytes((directory / "config.json").read_bytes())


def safetensors_seeds():
    header = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, size in (("a", "F32", [2, 3], 24), ("b", "BF16", [4], 8), ("c", "F16", [], 2), ("d", "I64", [1], 8)):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (HERE / "corpus/safetensors/plain").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    index = GOLDEN / "models/qwen3/model.safetensors.index.json"
    (HERE / "corpus/safetensors/index").write_bytes(index.read_bytes())


def session_seed(name, ids, positions, logits=b""):
    """Of the model that session_fuzz.cc takes: 6 bytes of keys and values a position, 20 of state, 100 ids."""
    keys_values, state = bytes(6 * positions), bytes(20 if positions else 0)
    document = b"ETESESSN" + struct.pack("<I", 2) + b"m" * 32
    document += struct.pack("<5Q", len(ids), positions, len(keys_values), len(state), len(logits))
    document += struct.pack(f"<{len(ids)}i", *ids) + keys_values + state + logits
    (HERE / "corpus/session" / name).write_bytes(document + hashlib.sha256(document).digest())


def gguf_seed(arch, bias):
    path = HERE / "corpus/gguf" / arch
    w = GGUFWriter(path, arch)
    for add, value in ((w.add_block_count, 1), (w.add_context_length, 64), (w.add_embedding_length, 32), (w.add_feed_forward_length, 32),
                       (w.add_head_count, 2), (w.add_head_count_kv, 1), (w.add_key_length, 16), (w.add_value_length, 16),
                       (w.add_layer_norm_rms_eps, 1e-5), (w.add_rope_freq_base, 1e4), (w.add_rope_dimension_count, 16)):
        add(value)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(["a", "b", "c"])
    w.add_token_types([1, 1, 3])
    w.add_token_scores([0.0, -1.0, -2.0])
    w.add_token_merges(["a b"])
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_key_value("general.nested", [1, 2], GGUFValueType.ARRAY, GGUFValueType.UINT8)
    q8 = lambda rows: quants.quantize(np.ones((rows, 32), np.float32), T.Q8_0)
    w.add_tensor("token_embd.weight", q8(3), raw_dtype=T.Q8_0)
    for name, n in (("blk.0.attn_norm", 32), ("blk.0.ffn_norm", 32), ("output_norm", 32)):
        w.add_tensor(name + ".weight", np.ones(n, np.float32))
    for name, rows in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16), ("attn_output", 32), ("ffn_gate", 32), ("ffn_up", 32), ("ffn_down", 32)):
        w.add_tensor(f"blk.0.{name}.weight", q8(rows), raw_dtype=T.Q8_0)
        if bias and name in ("attn_q", "attn_k", "attn_v"):
            w.add_tensor(f"blk.0.{name}.bias", np.zeros(rows, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


config_seeds()
safetensors_seeds()
session_seed("whole", [5, 6, 7, 99], 4, struct.pack("<100f", *range(100)))
session_seed("no_logits", [5, 6, 7, 99], 3)
session_seed("ids_only", [1, 2], 0)
gguf_seed("llama", bias=False)
gguf_seed("qwen2", bias=True)
