#!/usr/bin/env python3
"""Writes the tokenizer metadata of a GGUF file as a compact fixture: extract_gguf_vocabulary.py IN.gguf OUT.bin

Several parts of one file are given as IN.part00,IN.part01,... The fixture is raw deflate with a zlib header over
    "ETEVOCAB1" then, little-endian, in this order (str = u32 length and bytes):
    str model, str pre, u32 n and n str tokens, u32 n and n f32 scores, u32 n and n u8 token types,
    u32 n and n str merges, u32 n and n (str name, i64 id), u32 n and n (str name, u8 flag)
where names lack the prefix "tokenizer.ggml." and ids also the suffix "_token_id".
"""
import io
import struct
import sys
import zlib

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def unpack(f, fmt):
    return struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))


def read_string(f):
    return f.read(unpack(f, "Q")[0])


def read_value(f, kind):
    if kind == STRING:
        return read_string(f)
    if kind == ARRAY:
        element, n = unpack(f, "IQ")
        if element == STRING:
            return [read_string(f) for _ in range(n)]
        return list(unpack(f, "%d%s" % (n, SCALARS[element])))
    return unpack(f, SCALARS[kind])[0]


def read_metadata(f):
    magic, _, _, n_keys = unpack(f, "4sIQQ")
    assert magic == b"GGUF", "not a GGUF file"
    metadata = {}
    for _ in range(n_keys):
        key = read_string(f).decode()
        metadata[key] = read_value(f, unpack(f, "I")[0])
    return metadata


def put_string(out, s):
    out.write(struct.pack("<I", len(s)) + s)


def put_list(out, values, put):
    out.write(struct.pack("<I", len(values)))
    for v in values:
        put(v)


def main():
    head = b"".join(open(part, "rb").read(64 << 20) for part in sys.argv[1].split(","))
    prefix = "tokenizer.ggml."
    meta = {k[len(prefix):]: v for k, v in read_metadata(io.BytesIO(head)).items() if k.startswith(prefix)}
    out = io.BytesIO()
    out.write(b"ETEVOCAB1")
    put_string(out, meta["model"])
    put_string(out, meta.get("pre", b""))
    put_list(out, meta["tokens"], lambda s: put_string(out, s))
    put_list(out, meta.get("scores", []), lambda v: out.write(struct.pack("<f", v)))
    put_list(out, meta.get("token_type", []), lambda v: out.write(struct.pack("<B", v)))
    put_list(out, meta.get("merges", []), lambda s: put_string(out, s))
    suffix = "_token_id"
    ids = [(k[:-len(suffix)].encode(), v) for k, v in meta.items() if k.endswith(suffix)]
    put_list(out, ids, lambda kv: (put_string(out, kv[0]), out.write(struct.pack("<q", kv[1]))))
    flags = [(k.encode(), v) for k, v in meta.items() if isinstance(v, bool)]
    put_list(out, flags, lambda kv: (put_string(out, kv[0]), out.write(struct.pack("<B", kv[1]))))
    open(sys.argv[2], "wb").write(zlib.compress(out.getvalue(), 9))


if __name__ == "__main__":
    main()
