"""Checkpoints of real dimensions with random weights, for speed: what they say is noise."""

import json
import random
import struct
from pathlib import Path

PIECE = 64 << 20


class Writer:
    """One safetensors file, tensor by tensor. Values lie in +-[2^-7, 2^-5), of mean 0; norms are 1."""

    def __init__(self):
        self.tensors = []

    def add(self, name, *shape, ones=False):
        self.tensors.append((name, shape, ones))

    def linear(self, name, outputs, inputs, bias=False):
        self.add(f"{name}.weight", outputs, inputs)
        if bias:
            self.add(f"{name}.bias", outputs)

    def norm(self, name, width, bias=False):
        self.add(f"{name}.weight", width, ones=True)
        if bias:
            self.add(f"{name}.bias", width)

    def write(self, path):
        rng = random.Random(1)
        block = bytearray(PIECE)
        block[0::2] = rng.randbytes(PIECE // 2)
        signs = bytes(0x3C | (b & 0x80) for b in range(256))
        block[1::2] = rng.randbytes(PIECE // 2).translate(signs)
        view, one = memoryview(block), struct.pack("<H", 0x3F80)
        header, at = {}, 0
        for name, shape, _ in self.tensors:
            size = 2
            for n in shape:
                size *= n
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name, _, ones in self.tensors:
                start, end = header[name]["data_offsets"]
                left = end - start
                if ones:
                    file.write(one * (left // 2))
                    continue
                while left:
                    # Another part of the block each time, so that neighbours differ.
                    offset = rng.randrange(PIECE // 4) * 2
                    piece = view[offset : offset + min(left, PIECE - offset)]
                    file.write(piece)
                    left -= len(piece)


def text_tensors(writer, config, head):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = hidden // config["num_attention_heads"]
    keys = config["num_key_value_heads"] * width
    writer.add("model.embed_tokens.weight", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        writer.norm(f"{at}.input_layernorm", hidden)
        writer.norm(f"{at}.post_attention_layernorm", hidden)
        writer.linear(f"{at}.self_attn.q_proj", hidden, hidden, bias=True)
        writer.linear(f"{at}.self_attn.k_proj", keys, hidden, bias=True)
        writer.linear(f"{at}.self_attn.v_proj", keys, hidden, bias=True)
        writer.linear(f"{at}.self_attn.o_proj", hidden, hidden)
        writer.linear(f"{at}.mlp.gate_proj", inner, hidden)
        writer.linear(f"{at}.mlp.up_proj", inner, hidden)
        writer.linear(f"{at}.mlp.down_proj", hidden, inner)
    writer.norm("model.norm", hidden)
    if head:
        writer.add("lm_head.weight", config["vocab_size"], hidden)


def vision_tensors(writer, config):
    hidden, inner, out = config["hidden_size"], config["intermediate_size"], config["out_hidden_size"]
    writer.add("visual.patch_embed.proj.weight", hidden, 3, 2, config["patch_size"], config["patch_size"])
    for layer in range(config["depth"]):
        at = f"visual.blocks.{layer}"
        writer.norm(f"{at}.norm1", hidden)
        writer.norm(f"{at}.norm2", hidden)
        for part in ("q", "k", "v", "proj"):
            writer.linear(f"{at}.attn.{part}", hidden, hidden, bias=True)
        writer.linear(f"{at}.mlp.gate_proj", inner, hidden, bias=True)
        writer.linear(f"{at}.mlp.up_proj", inner, hidden, bias=True)
        writer.linear(f"{at}.mlp.down_proj", hidden, inner, bias=True)
    writer.norm("visual.merger.ln_q", hidden)
    writer.linear("visual.merger.mlp.0", 4 * hidden, 4 * hidden, bias=True)
    writer.linear("visual.merger.mlp.2", out, 4 * hidden, bias=True)


def audio_tensors(writer, config):
    width, inner = config["d_model"], config["encoder_ffn_dim"]
    writer.add("audio_tower.conv1.weight", width, config["num_mel_bins"], 3)
    writer.add("audio_tower.conv1.bias", width)
    writer.add("audio_tower.conv2.weight", width, width, 3)
    writer.add("audio_tower.conv2.bias", width)
    for layer in range(config["encoder_layers"]):
        at = f"audio_tower.layers.{layer}"
        writer.norm(f"{at}.self_attn_layer_norm", width, bias=True)
        writer.norm(f"{at}.final_layer_norm", width, bias=True)
        writer.linear(f"{at}.self_attn.q_proj", width, width, bias=True)
        writer.linear(f"{at}.self_attn.k_proj", width, width)
        writer.linear(f"{at}.self_attn.v_proj", width, width, bias=True)
        writer.linear(f"{at}.self_attn.out_proj", width, width, bias=True)
        writer.linear(f"{at}.fc1", inner, width, bias=True)
        writer.linear(f"{at}.fc2", width, inner, bias=True)
    writer.norm("audio_tower.ln_post", width, bias=True)
    writer.linear("audio_tower.proj", config["output_dim"], width, bias=True)


TEXT_3B = dict(
    hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2,
    vocab_size=151936, max_position_embeddings=32768,
)
TEXT_7B = dict(
    hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
    vocab_size=152064, max_position_embeddings=32768,
)
VISION = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, fullatt_block_indexes=[7, 15, 23, 31])
AUDIO = dict(d_model=1280, encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120)


def decode_bytes(text):
    """Weight bytes that a decode step reads: every layer and the head, each once."""
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    keys = text["num_key_value_heads"] * hidden // text["num_attention_heads"]
    layer = 2 * hidden * hidden + 2 * keys * hidden + 3 * hidden * inner
    return 2 * (text["num_hidden_layers"] * layer + text["vocab_size"] * hidden)


def kv_bytes(text, tokens):
    """Bytes of keys and values of this many tokens."""
    keys = text["num_key_value_heads"] * text["hidden_size"] // text["num_attention_heads"]
    return 2 * 2 * text["num_hidden_layers"] * keys * tokens


def thinker(folder, sample, text):
    """A Qwen2.5-Omni thinker, with the small files of the sample model."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "processor_config.json"):
        (folder / name).write_bytes((Path(sample) / name).read_bytes())
    processor = json.loads((folder / "processor_config.json").read_text())
    processor["image_processor"]["size"]["longest_edge"] = 4 << 20
    (folder / "processor_config.json").write_text(json.dumps(processor))
    config = json.loads((Path(sample) / "config.json").read_text())
    width = text["hidden_size"] // text["num_attention_heads"]
    config["text_config"].update(text, tie_word_embeddings=False, layer_types=["full_attention"] * text["num_hidden_layers"])
    config["text_config"]["rope_parameters"]["mrope_section"] = [width // 8, 3 * width // 16, 3 * width // 16]
    config["vision_config"].update(VISION, out_hidden_size=text["hidden_size"])
    config["audio_config"].update(AUDIO, output_dim=text["hidden_size"])
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    writer = Writer()
    text_tensors(writer, config["text_config"], head=True)
    vision_tensors(writer, config["vision_config"])
    audio_tensors(writer, config["audio_config"])
    writer.write(folder / "model.safetensors")
    return folder


def decoder(folder, sample, text):
    """A Qwen2 text decoder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((Path(sample) / name).read_bytes())
    config = dict(text, model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_act="silu", rms_norm_eps=1e-6,
                  rope_theta=1e6, tie_word_embeddings=False, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    writer = Writer()
    text_tensors(writer, config, head=True)
    writer.write(folder / "model.safetensors")
    return folder
