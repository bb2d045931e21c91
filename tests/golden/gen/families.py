"""Golden numbers of the model families: for each a seeded tiny checkpoint, twelve prompts with their greedy tokens, and what
its towers make of two media. Written by transformers, loaded by Weft with no change."""
import shutil
import sys
from dataclasses import replace

import torch
from PIL import Image

from . import omni
from .cases import audio, image, user
from .common import GOLDEN, MEDIA, ROOT, read_audio, versions, write_json, write_tensors

sys.path.insert(0, str(ROOT / "samples" / "models"))
import make_tiny_omni as tiny  # noqa: E402

OUT = GOLDEN / "families"
TEXT = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            vocab_size=tiny.VOCAB, max_position_embeddings=4096, tie_word_embeddings=False)
SHAPE = tiny.Shape(title="", seed=11, tied=False, text=TEXT, mrope_section=[], vision={}, audio={}, logit_std=4.0, shard="4MB")
SEES = [
    ("text", [user("What is a loom?")]),
    ("text, own system prompt", [("system", ["Answer in one word."]), user("Où est le café? 早上好 🧵")]),
    ("text, several turns", [user("Hello."), ("assistant", ["Good morning."]), user("Name a fabric.")]),
    ("image", [user(image("56x56"), "Describe the picture.")]),
    ("image, several windows", [user(image("140x140"), "What is in the middle?")]),
    ("image, resized, odd sides", [user(image("57x113"), "What is this?")]),
    ("image, one pixel", [user(image("1x1"), "Which colour is it?")]),
    ("image, wide strip", [user(image("600x40"), "Read it from left to right.")]),
    ("image, JPEG", [user(image("168x126", "jpg"), "What is this?")]),
    ("two images", [user(image("56x56"), image("112x56"), "Compare the two.")]),
    ("two images, text between", [user("First:", image("84x84"), "Second:", image("196x84"), "Which is wider?")]),
    ("several turns, two images",
     [user("Remember this.", image("10x7")), ("assistant", ["I will."]), user("And this.", image("100x75"), "Which was first?")]),
]
READS = [
    ("text", [user("What is a loom?")]),
    ("text", [user("List three colours, one on each line.\n")]),
    ("own system prompt, non-ASCII", [("system", ["Answer in one word."]), user("Où est le café? 早上好 🧵")]),
    ("several turns", [user("Hello."), ("assistant", ["Good morning. How can I help?"]), user("Name a fabric.")]),
    ("long", [user("Count the words in this text. " + "The shuttle carries the thread from side to side. " * 24)]),
    ("one letter", [user("a")]),
    ("digits", [user("1 2 3 4 5 6 7 8 9 10 11 12")]),
    ("code", [user("def weave(threads):\n    return sorted(threads)\n")]),
    ("spaces", [user("  leading,   inner  and trailing   ")]),
    ("many turns", [user("One."), ("assistant", ["Two."]), user("Three."), ("assistant", ["Four."]), user("Five.")]),
    ("long system prompt", [("system", ["Speak plainly. " * 20]), user("Who are you?")]),
    ("line breaks", [user("first\n\nsecond\n\n\nthird")]),
]
TOWER_IMAGES = ["scene_56x56.png", "scene_140x140.png"]


def qwen_vl(name, model_type, vision):
    from transformers import (AutoConfig, AutoModelForImageTextToText, Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil,
                              Qwen2VLProcessor, Qwen2VLVideoProcessor)
    tokenizer = tiny.make_tokenizer()
    token = tokenizer.convert_tokens_to_ids
    config = AutoConfig.for_model(
        model_type, vision_config=vision, image_token_id=token("<|IMAGE|>"), video_token_id=token("<|VIDEO|>"),
        vision_start_token_id=token("<|vision_bos|>"), vision_end_token_id=token("<|vision_eos|>"), tie_word_embeddings=False,
        text_config=dict(TEXT, rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3])))
    processor = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}[model_type](
        image_processor=Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 64), tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(), chat_template=tiny.TEMPLATE)
    save(name, AutoModelForImageTextToText.from_config(config), processor, tokenizer)
    return QwenVl(OUT / name / "checkpoint")


def decoder(name, model_type, **fields):
    from transformers import AutoConfig, AutoModelForCausalLM
    tokenizer = tiny.make_tokenizer()
    tokenizer.chat_template = tiny.TEMPLATE
    token = tokenizer.convert_tokens_to_ids
    ends = dict(pad_token_id=token("<|endoftext|>"), bos_token_id=token("<|im_start|>"), eos_token_id=token("<|im_end|>"))
    config = AutoConfig.for_model(model_type, **{**TEXT, **ends, **fields})
    save(name, AutoModelForCausalLM.from_config(config), tokenizer, tokenizer)
    return Text(OUT / name / "checkpoint")


def save(name, model, processor, tokenizer):
    from transformers import GenerationConfig
    folder = OUT / name / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    tiny.randomise(model, replace(SHAPE, tied=model.config.tie_word_embeddings))
    model.generation_config = GenerationConfig(
        do_sample=False, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")])
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)


class Reference(omni.Reference):
    """A family's model and processor; what differs between families is in its subclasses."""

    def __init__(self, folder):
        from transformers import AutoModelForImageTextToText, AutoProcessor
        torch.set_num_threads(1)
        self.model = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.processor = AutoProcessor.from_pretrained(folder)
        self.tokenizer = self.processor.tokenizer
        self.ends = set(self.model.generation_config.eos_token_id)

    def inputs(self, messages):
        files = {kind: [p[kind] for m in messages for p in m["content"] if p["type"] == kind] for kind in ("image", "audio")}
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        media = {"images": [Image.open(MEDIA / f).convert("RGB") for f in files["image"]]} if files["image"] else {}
        if files["audio"]:
            media["audio"] = [read_audio(MEDIA / f) for f in files["audio"]]
        return text, files, self.processor(text=text, **media, return_tensors="pt")


class Text(Reference):
    def __init__(self, folder):
        from transformers import AutoModelForCausalLM, AutoTokenizer
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.ends = set(self.model.generation_config.eos_token_id)

    def inputs(self, messages):
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text, {"image": [], "audio": []}, self.tokenizer(text, add_special_tokens=False, return_tensors="pt")


class QwenVl(Reference):
    def __init__(self, folder):
        from transformers import Qwen2VLImageProcessorPil
        super().__init__(folder)
        self.processor.image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder)

    @torch.no_grad()
    def tower(self, file):
        inputs = self.inputs([{"role": "user", "content": [{"type": "image", "image": file}]}])[2]
        patches, grid = inputs["pixel_values"], inputs["image_grid_thw"]
        out = self.model.model.visual(patches, grid_thw=grid).pooler_output
        return {"pixel_values": patches.numpy(), "grid_thw": grid[0].numpy(), "vision_out": out.numpy()}


def suite(name, reference, cases, tower_files):
    records, tensors = [], {}
    for number, (kind, turns) in enumerate(cases):
        tails = omni.TAILS if isinstance(turns[-1][1][-1], str) else [""]
        for tail in tails:
            messages = omni.messages_of(turns, tail)
            text, files, inputs = reference.inputs(messages)
            tokens, gap, logits = reference.greedy(inputs)
            media = files["image"] or files["audio"]
            if gap >= omni.MIN_GAP and not reference.ends & set(tokens) and (
                    not media or reference.steady(inputs, files, tokens)):
                break
        else:
            raise SystemExit(f"{name}, case {number} ({kind}): no wording keeps its distance from ties")
        records.append(dict(
            id=f"case{number:02}", kind=kind, messages=messages, prompt_text=text, prompt_ids=inputs["input_ids"][0].tolist(),
            greedy_ids=tokens, greedy_text=reference.tokenizer.decode(tokens, skip_special_tokens=True), min_gap=round(gap, 5)))
        print(f"{name} case{number:02} {kind}: {inputs['input_ids'].shape[1]} tokens, gap {gap:.4f}, {len(set(tokens))} distinct")
    for file in tower_files:
        for key, value in reference.tower(file).items():
            tensors[f"{file}.{key}"] = value
    write_json(OUT / name / "prompts.json", dict(
        about=f"{name}, seed {SHAPE.seed}; float32, greedy, {omni.STEPS} tokens with the stop tokens ignored; media in "
              "tests/golden/media", made_by=versions("transformers", "torch", "pillow", "numpy", "tokenizers"),
        required_min_gap=omni.MIN_GAP, min_gap=min(r["min_gap"] for r in records), cases=records))
    if tensors:
        write_tensors(OUT / name / "towers.safetensors", tensors,
                      about="processor outputs and tower outputs, f32; grid_thw i64")


def decoders():
    """Each with what only its config can ask for: biases, windows shorter than a prompt, every kind of rotary scaling."""
    short = dict(original_max_position_embeddings=64, factor=4.0)
    yield "llama", dict(attention_bias=True, mlp_bias=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=1e4, low_freq_factor=1.0, high_freq_factor=4.0, **short))
    yield "mistral", dict(sliding_window=24, head_dim=24, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0))
    yield "qwen2", dict(use_sliding_window=True, sliding_window=16, max_window_layers=1, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, **short))
    yield "qwen3", dict(head_dim=24, tie_word_embeddings=True)
    yield "phi3", dict(sliding_window=24, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75))


def families():
    for name, fields in decoders():
        suite(name, decoder(name, name, **fields), READS, [])
    vision = dict(hidden_size=48, num_heads=3, intermediate_size=80, depth=3, fullatt_block_indexes=[1], out_hidden_size=48,
                  patch_size=14, temporal_patch_size=2, spatial_merge_size=2, window_size=112)
    suite("qwen2_5_vl", qwen_vl("qwen2_5_vl", "qwen2_5_vl", vision), SEES, TOWER_IMAGES)
    vision = dict(embed_dim=48, num_heads=3, mlp_ratio=2, depth=2, hidden_size=48, patch_size=14, temporal_patch_size=2,
                  spatial_merge_size=2)
    suite("qwen2_vl", qwen_vl("qwen2_vl", "qwen2_vl", vision), SEES, TOWER_IMAGES)
