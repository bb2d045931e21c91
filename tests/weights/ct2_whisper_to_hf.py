#!/usr/bin/env python3
"""CTranslate2 Whisper folder -> Hugging Face Whisper folder (float16 safetensors, config, tokenizer, generation config).

usage: ct2_whisper_to_hf.py CT2_DIR OUT_DIR        (needs numpy and safetensors)

model.bin: u32 version, string spec, u32 revision, u32 count; per variable: string name, u8 rank, u32 dims, u8 dtype,
u32 bytes, data; then u32 aliases of (string, string). A string is u16 length (with its NUL) plus bytes. Little endian.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read_model(path):
    with open(path, "rb") as f:
        take = lambda fmt: struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))[0]
        text = lambda: f.read(take("H"))[:-1].decode()
        take("I"), text(), take("I")
        variables = {}
        for _ in range(take("I")):
            name = text()
            dims = [take("I") for _ in range(take("B"))]
            dtype = DTYPES[take("B")]
            variables[name] = np.frombuffer(f.read(take("I")), dtype).reshape(dims)
        for _ in range(take("I")):
            alias, target = text(), text()
            variables[alias] = variables[target]
        return variables


def convert(v):
    out = {}

    def linear(src, dst, rows=None, bias=True):
        w, b = v[src + "/weight"], v[src + "/bias"]
        if rows:
            part, of = rows
            w, b = np.split(w, of)[part], np.split(b, of)[part]
        out[dst + ".weight"] = w
        if bias:
            out[dst + ".bias"] = b

    def norm(src, dst):
        out[dst + ".weight"], out[dst + ".bias"] = v[src + "/gamma"], v[src + "/beta"]

    for i in (1, 2):
        linear(f"encoder/conv{i}", f"model.encoder.conv{i}")
    for side in ("encoder", "decoder"):
        out[f"model.{side}.embed_positions.weight"] = v[f"{side}/position_encodings/encodings"]
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
    out["model.decoder.embed_tokens.weight"] = v["decoder/embeddings/weight"]
    depth = {s: 1 + max(int(k.split("layer_")[1].split("/")[0]) for k in v if k.startswith(s + "/layer_") and k[14].isdigit()) for s in ("encoder", "decoder")}
    for side, layers in depth.items():
        for i in range(layers):
            src, dst = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            norm(f"{src}/self_attention/layer_norm", f"{dst}.self_attn_layer_norm")
            for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
                linear(f"{src}/self_attention/linear_0", f"{dst}.self_attn.{name}", (part, 3), bias=name != "k_proj")
            linear(f"{src}/self_attention/linear_1", f"{dst}.self_attn.out_proj")
            if side == "decoder":
                norm(f"{src}/attention/layer_norm", f"{dst}.encoder_attn_layer_norm")
                linear(f"{src}/attention/linear_0", f"{dst}.encoder_attn.q_proj")
                linear(f"{src}/attention/linear_1", f"{dst}.encoder_attn.k_proj", (0, 2), bias=False)
                linear(f"{src}/attention/linear_1", f"{dst}.encoder_attn.v_proj", (1, 2))
                linear(f"{src}/attention/linear_2", f"{dst}.encoder_attn.out_proj")
            norm(f"{src}/ffn/layer_norm", f"{dst}.final_layer_norm")
            linear(f"{src}/ffn/linear_0", f"{dst}.fc1")
            linear(f"{src}/ffn/linear_1", f"{dst}.fc2")
    return out, depth


def main(src, dst):
    src, dst = Path(src), Path(dst)
    dst.mkdir(parents=True, exist_ok=True)
    tensors, depth = convert(read_model(src / "model.bin"))
    save_file({k: np.ascontiguousarray(t, np.float16) for k, t in tensors.items()}, dst / "model.safetensors", metadata={"format": "pt"})
    width, mels = tensors["model.encoder.conv1.weight"].shape[:2]
    vocab = tensors["model.decoder.embed_tokens.weight"].shape[0]
    multilingual = vocab > 51864
    end = 50257 if multilingual else 50256
    shared = dict(bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=end + 1)
    (dst / "config.json").write_text(json.dumps(dict(
        architectures=["WhisperForConditionalGeneration"], model_type="whisper", is_encoder_decoder=True, activation_function="gelu",
        vocab_size=vocab, num_mel_bins=mels, d_model=width, encoder_layers=depth["encoder"], decoder_layers=depth["decoder"],
        encoder_attention_heads=width // 64, decoder_attention_heads=width // 64, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        max_source_positions=1500, max_target_positions=448, scale_embedding=False, tie_word_embeddings=True, **shared), indent=1))
    ct2 = json.loads((src / "config.json").read_text())
    ids = {t["content"]: t["id"] for t in json.loads((src / "tokenizer.json").read_text())["added_tokens"]}
    languages = {t: i for t, i in ids.items() if multilingual and end + 1 < i < ids["<|translate|>"]}
    tasks = dict(lang_to_id=languages, task_to_id={t: ids[f"<|{t}|>"] for t in ("transcribe", "translate")}) if multilingual else {}
    (dst / "generation_config.json").write_text(json.dumps(dict(
        max_initial_timestamp_index=50, prev_sot_token_id=ids["<|startofprev|>"], return_timestamps=False, **tasks,
        suppress_tokens=ct2.get("suppress_ids"), begin_suppress_tokens=ct2.get("suppress_ids_begin"), alignment_heads=ct2.get("alignment_heads"),
        is_multilingual=multilingual, max_length=448, no_timestamps_token_id=50363 if multilingual else 50362, **shared), indent=1))
    (dst / "preprocessor_config.json").write_text(json.dumps(dict(
        feature_extractor_type="WhisperFeatureExtractor", feature_size=mels, sampling_rate=16000, hop_length=160, n_fft=400,
        chunk_length=30, n_samples=480000, nb_max_frames=3000, padding_side="right", padding_value=0.0, return_attention_mask=False), indent=1))
    shutil.copy(src / "tokenizer.json", dst)
    print(f"{dst}: width {width}, mels {mels}, layers {depth}, vocabulary {vocab}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
