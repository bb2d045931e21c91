"""Golden numbers of the Qwen2.5-Omni thinker: prompts, positions, logits, greedy tokens, tower outputs.

Everything is computed in float32 from the bfloat16 checkpoint. A case is kept only when the first two logits stay at
least MIN_GAP apart along the whole greedy path, and when noise of the size that another preprocessing may cause (one grey
level on a resized picture, 1e-4 on log-mel) does not change a token.
"""
import numpy as np
import torch
from PIL import Image
from transformers import Qwen2_5OmniProcessor, Qwen2_5OmniThinkerForConditionalGeneration, Qwen2VLImageProcessorPil

from .cases import CASES, EMBEDDED, STORED_AUDIO, STORED_IMAGES, TAILS
from .common import GOLDEN, MEDIA, ROOT, read_audio, versions, write_json, write_tensors

STEPS = 32
MIN_GAP = 2e-3
NOISE_SEEDS = (1, 2, 3)


class Reference:
    def __init__(self, folder):
        torch.set_num_threads(1)
        self.model = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.processor = Qwen2_5OmniProcessor.from_pretrained(folder)
        # The Pillow path, which antialiases as the model was trained with; the default is the torchvision one.
        self.processor.image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.ends = set(self.model.generation_config.eos_token_id)

    def inputs(self, messages):
        files = {kind: [p[kind] for m in messages for p in m["content"] if p["type"] == kind] for kind in ("image", "audio")}
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = self.processor(
            text=text, images=[Image.open(MEDIA / f).convert("RGB") for f in files["image"]] or None,
            audio=[read_audio(MEDIA / f) for f in files["audio"]] or None, return_tensors="pt")
        return text, files, inputs

    @torch.no_grad()
    def greedy(self, inputs):
        """(tokens, smallest top-1 minus top-2, first-step logits), with the chat's stop tokens taken out of the race."""
        out = self.model.generate(**inputs, do_sample=False, max_new_tokens=STEPS, eos_token_id=None, use_cache=True,
                                  return_dict_in_generate=True, output_logits=True)
        logits = torch.stack(out.logits)[:, 0]
        top = logits.topk(2).values
        return out.sequences[0, inputs["input_ids"].shape[1]:].tolist(), float((top[:, 0] - top[:, 1]).min()), logits[0].numpy()

    def steady(self, inputs, files, tokens):
        """Whether noise of another preprocessing leaves the tokens alone."""
        for seed in NOISE_SEEDS:
            random = torch.Generator().manual_seed(seed)
            noisy = dict(inputs)
            if "pixel_values" in noisy:
                step = torch.rand(noisy["pixel_values"].shape, generator=random) * 2 - 1
                noisy["pixel_values"] = noisy["pixel_values"] + step / 255 / 0.27
            if "input_features" in noisy:
                noisy["input_features"] = noisy["input_features"] + 1e-4 * (
                    torch.rand(noisy["input_features"].shape, generator=random) * 2 - 1)
            if len(noisy) and self.greedy(noisy)[0] != tokens:
                return False
        return True


def messages_of(turns, tail):
    messages = [{"role": role, "content": [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": p[0], p[0]: p[1]} for p in parts]} for role, parts in turns]
    last = messages[-1]["content"]
    if tail:
        last[-1]["text"] += tail
    return messages


def frames(inputs):
    return inputs["feature_attention_mask"].sum(-1).tolist() if "feature_attention_mask" in inputs else []


def run_case(reference, number, kind, turns):
    media = any(not isinstance(p, str) for _, parts in turns for p in parts)
    tails = TAILS if isinstance(turns[-1][1][-1], str) else [""]
    for tail in tails:
        messages = messages_of(turns, tail)
        text, files, inputs = reference.inputs(messages)
        tokens, gap, logits = reference.greedy(inputs)
        if gap >= MIN_GAP and not reference.ends & set(tokens) and (not media or reference.steady(inputs, files, tokens)):
            break
    else:
        raise SystemExit(f"case {number} ({kind}): no wording keeps its distance from ties")
    ids = inputs["input_ids"]
    positions, delta = reference.model.get_rope_index(
        ids, inputs.get("image_grid_thw"), None, inputs["attention_mask"],
        audio_seqlens=torch.tensor(frames(inputs)) if frames(inputs) else None)
    order = np.argsort(-logits)[:20]
    grids = inputs["image_grid_thw"].tolist() if "image_grid_thw" in inputs else []
    record = dict(
        id=f"case{number:02}", kind=kind, messages=messages, images=files["image"], audios=files["audio"], prompt_text=text,
        prompt_ids=ids[0].tolist(), image_grids=grids, image_tokens=[t * h * w // 4 for t, h, w in grids],
        audio_frames=frames(inputs), audio_tokens=[((n - 1) // 2 + 1 - 2) // 2 + 1 for n in frames(inputs)],
        positions=positions[:, 0].tolist(), rope_delta=int(delta[0, 0]), greedy_ids=tokens,
        greedy_text=reference.processor.tokenizer.decode(tokens, skip_special_tokens=True),
        min_gap=round(gap, 5), top20_ids=order.tolist(), top20_logits=[round(float(logits[i]), 5) for i in order])
    print(f"case{number:02} {kind}: {ids.shape[1]} tokens, gap {gap:.4f}, {len(set(tokens))} distinct", flush=True)
    return record, logits, inputs


def suite(folder, numbers, out, title):
    reference = Reference(folder)
    records, logits, kept = [], {}, {}
    for number in numbers:
        record, first, inputs = run_case(reference, number, *CASES[number])
        records.append(record)
        logits[f"{record['id']}.logits"] = first
        kept[record["id"]] = (record, inputs)
    write_json(out / "prompts.json", dict(
        about=f"{title}; float32, greedy, {STEPS} tokens with the stop tokens ignored; positions are [t, h, w]; logits of "
              "the last prompt position are in logits.safetensors; media in tests/golden/media",
        made_by=versions("transformers", "torch", "pillow", "numpy", "tokenizers"),
        checkpoint=str(folder.relative_to(ROOT)), required_min_gap=MIN_GAP, min_gap=min(r["min_gap"] for r in records),
        noise_checked="tokens stay equal under uniform noise of one grey level on pixels and 1e-4 on log-mel, seeds "
                      + ", ".join(map(str, NOISE_SEEDS)),
        cases=records))
    write_tensors(out / "logits.safetensors", logits, about="f32 [vocab], last prompt position")
    return reference, kept


def embedded():
    suite(ROOT / "samples/models/tiny-omni", EMBEDDED, GOLDEN / "embedded", "the embedded model, tied embeddings")


def omni():
    out = GOLDEN / "omni"
    reference, kept = suite(out / "checkpoint", range(len(CASES)), out, "exactness checkpoint, untied embeddings")
    towers(reference, kept, out)
    layers(reference, kept, out)


@torch.no_grad()
def towers(reference, kept, out):
    """What goes into and comes out of each tower, one image or clip at a time."""
    tensors, seen = {}, set()
    for name, (record, inputs) in kept.items():
        at = 0
        for i, (file, (t, h, w)) in enumerate(zip(record["images"], record["image_grids"])):
            patches = inputs["pixel_values"][at: at + t * h * w]
            at += t * h * w
            key = file.removeprefix("scene_")
            if key in STORED_IMAGES and key not in seen:
                seen.add(key)
                grid = torch.tensor([[t, h, w]])
                stem = f"{name}.image{i}"
                tensors[f"{stem}.pixel_values"] = patches.numpy()
                tensors[f"{stem}.grid_thw"] = grid[0].numpy()
                tensors[f"{stem}.vision_out"] = reference.model.visual(patches, grid_thw=grid).pooler_output.numpy()
        for i, (file, count) in enumerate(zip(record["audios"], record["audio_frames"])):
            key = file.removesuffix(".wav")
            if key in STORED_AUDIO and key not in seen:
                seen.add(key)
                mel = inputs["input_features"][i, :, :count]
                stem = f"{name}.audio{i}"
                tensors[f"{stem}.input_features"] = mel.numpy()
                tensors[f"{stem}.audio_out"] = reference.model.audio_tower(
                    mel, feature_lens=torch.tensor([count])).last_hidden_state.numpy()
    write_tensors(out / "towers.safetensors", tensors, about="processor outputs and tower outputs, f32; grid_thw i64")


@torch.no_grad()
def layers(reference, kept, out):
    """Every intermediate of one image, one clip and one text, for finding where a difference begins."""
    tensors, handles = {}, []

    def watch(module, name):
        def keep(_, __, result):
            value = result[0] if isinstance(result, tuple) else result
            tensors[name] = value.squeeze(0).numpy().copy()
        handles.append(module.register_forward_hook(keep))

    model = reference.model
    _, (picture, clip, words) = "", (
        next(k for k in kept.values() if k[0]["images"] == ["scene_140x140.png"]),
        next(k for k in kept.values() if k[0]["audios"] == ["two_windows.wav"]), kept["case00"])
    watch(model.visual.patch_embed, "vision.patch_embed")
    for i, block in enumerate(model.visual.blocks):
        watch(block, f"vision.block{i}")
    watch(model.visual.merger, "vision.merger")
    watch(model.audio_tower.conv1, "audio.conv1")
    watch(model.audio_tower.conv2, "audio.conv2")
    for i, layer in enumerate(model.audio_tower.layers):
        watch(layer, f"audio.layer{i}")
    watch(model.audio_tower.ln_post, "audio.ln_post")
    watch(model.model.embed_tokens, "text.embed")
    for i, layer in enumerate(model.model.layers):
        watch(layer, f"text.layer{i}")
    watch(model.model.norm, "text.norm")
    model.visual(picture[1]["pixel_values"], grid_thw=picture[1]["image_grid_thw"])
    count = clip[0]["audio_frames"][0]
    model.audio_tower(clip[1]["input_features"][0, :, :count], feature_lens=torch.tensor([count]))
    model(input_ids=words[1]["input_ids"], attention_mask=words[1]["attention_mask"])
    for handle in handles:
        handle.remove()
    write_tensors(out / "layers.safetensors", tensors, vision_case=picture[0]["id"], audio_case=clip[0]["id"], text_case="case00",
                  about="vision blocks are in window order; conv1 and conv2 are [chunk, channel, frame] before GELU, tail padded")
