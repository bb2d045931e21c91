"""Picture fixtures: every common file kind, the reference's RGB after resize, and a table of resized sizes.

The reference: EXIF orientation applied, alpha composited on white, 16-bit grey scaled to 8 bits, first frame of an
animation; then Qwen2-VL's Pillow processor (bicubic with antialiasing)."""
import io

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from transformers import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from .common import GOLDEN, versions, write_json
from .media import font, scene

OUT = GOLDEN / "media_fixtures" / "images"
DEFAULT_MAX = 28 * 28 * 1280


def photo(width, height, seed, noise=6):
    """The scene with camera-like noise and some fine print."""
    image = np.asarray(scene(width, height, seed)).astype(np.float32)
    image += np.random.default_rng(seed).normal(0, noise, image.shape)
    image = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))
    ImageDraw.Draw(image).text((width // 3, height // 2), "Wool 4.50", font=font(max(9, height // 12)), fill="black")
    return image


def mask(width, height):
    alpha = Image.linear_gradient("L").resize((width, height))
    ImageDraw.Draw(alpha).ellipse([width // 4, height // 4, width // 2, height // 2], fill=0)
    return alpha


def ycck(image):
    """An Adobe YCCK JPEG: Pillow stores 255 - sample and no transform, so hand it what must be stored, then say so."""
    cyan, magenta, yellow, black = image.convert("CMYK").split()
    ycc = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    flipped = [ImageOps.invert(c) for c in ycc] + [black]
    file = io.BytesIO()
    Image.merge("CMYK", flipped).save(file, "JPEG", quality=92, subsampling=0)
    data = bytearray(file.getvalue())
    at = data.index(b"Adobe")
    assert data[at + 11] == 0
    data[at + 11] = 2
    return bytes(data)


def files():
    """(file name, note, max_pixels): writes the pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    photo(160, 120, 1).save(OUT / "rgb.png", optimize=True)
    rgba = photo(150, 110, 2, noise=2)
    rgba.putalpha(mask(150, 110))
    rgba.save(OUT / "rgba.png", optimize=True)
    palette = scene(140, 100, 3).quantize(32)
    palette.save(OUT / "palette.png", optimize=True, transparency=3)
    grey = np.asarray(scene(130, 90, 4).convert("L")).astype(np.uint16)
    grey16 = grey * 257 - (np.indices(grey.shape).sum(0) % 128).astype(np.uint16) * (grey > 0)
    Image.fromarray(grey16).save(OUT / "grey16.png", optimize=True)
    photo(120, 90, 5).convert("CMYK").save(OUT / "cmyk_adobe.jpg", quality=92, subsampling=0)
    (OUT / "ycck_adobe.jpg").write_bytes(ycck(scene(120, 90, 6)))
    for orientation, seed in ((6, 7), (3, 8)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo(170, 110, seed).save(OUT / f"exif{orientation}.jpg", quality=90, exif=exif)
    photo(125, 95, 9).convert("L").save(OUT / "grey.jpg", quality=90)
    frames = [scene(100, 80, seed).quantize(16) for seed in (10, 11, 12)]
    frames[0].save(OUT / "animated.gif", save_all=True, append_images=frames[1:], duration=100, loop=0)
    photo(160, 120, 13).save(OUT / "lossy.webp", quality=85)
    alpha = scene(90, 120, 14)
    alpha.putalpha(mask(90, 120))
    alpha.save(OUT / "alpha.webp", lossless=True)
    scene(101, 67, 15).save(OUT / "rgb.bmp")
    scene(110, 84, 16).save(OUT / "lzw.tiff", compression="tiff_lzw")
    photo(900, 700, 17, noise=3).save(OUT / "large.jpg", quality=80)
    photo(24, 18, 18).save(OUT / "small.png", optimize=True)
    return [
        ("rgb.png", "8-bit RGB", DEFAULT_MAX), ("rgba.png", "alpha, composited on white", DEFAULT_MAX),
        ("palette.png", "palette with one transparent entry", DEFAULT_MAX),
        ("grey16.png", "16-bit grey, scaled to 8 bits", DEFAULT_MAX),
        ("cmyk_adobe.jpg", "CMYK with Adobe marker, stored inverted", DEFAULT_MAX),
        ("ycck_adobe.jpg", "YCCK with Adobe marker, stored inverted", DEFAULT_MAX),
        ("exif6.jpg", "EXIF orientation 6, subsampled colour", DEFAULT_MAX),
        ("exif3.jpg", "EXIF orientation 3, subsampled colour", DEFAULT_MAX),
        ("grey.jpg", "greyscale JPEG", DEFAULT_MAX), ("animated.gif", "first of three frames", DEFAULT_MAX),
        ("lossy.webp", "lossy WebP", DEFAULT_MAX), ("alpha.webp", "lossless WebP with alpha", DEFAULT_MAX),
        ("rgb.bmp", "24-bit BMP", DEFAULT_MAX), ("lzw.tiff", "LZW TIFF", DEFAULT_MAX),
        ("large.jpg", "shrunk four times in area", 28 * 28 * 200), ("small.png", "enlarged", DEFAULT_MAX)]


def to_rgb(image):
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def images():
    records = []
    for file, note, max_pixels in files():
        rgb = to_rgb(Image.open(OUT / file))
        processor = Qwen2VLImageProcessorPil(size=dict(shortest_edge=56 * 56, longest_edge=max_pixels))
        height, width = smart_resize(rgb.height, rgb.width, 28, 56 * 56, max_pixels)
        resized = rgb.resize((width, height), Image.Resampling.BICUBIC)
        values = processor(rgb, return_tensors="np")["pixel_values"]
        # The processor's numbers must be those of the stored picture: check before storing.
        pixels = np.asarray(resized).astype(np.float32)
        mean, std = np.array(processor.image_mean, np.float32), np.array(processor.image_std, np.float32)
        assert abs(((pixels / 255 - mean) / std).mean() - values.mean()) < 1e-5, file
        name = file.replace(".", "_") + ".png"
        (OUT / "expected").mkdir(exist_ok=True)
        resized.save(OUT / "expected" / name, optimize=True)
        planes = values.astype(np.float64).reshape(len(values), 3, -1)
        records.append(dict(
            file=file, note=note, max_pixels=max_pixels, oriented_size=[rgb.width, rgb.height], resized_size=[width, height],
            grid=[1, height // 14, width // 14], expected=f"expected/{name}",
            channel_mean=[round(float(m), 6) for m in planes.mean((0, 2))],
            channel_std=[round(float(s), 6) for s in planes.std((0, 2))],
            first_patch=[round(float(v), 6) for v in values[0, :14]], last_patch=[round(float(v), 6) for v in values[-1, -14:]]))
    write_json(OUT / "images.json", dict(
        about="sizes are [width, height]; expected is RGB after resize; statistics are of the normalised pixel_values; "
              "first_patch and last_patch are the first 14 values of the first and the last 14 of the last patch",
        made_by=versions("transformers", "pillow", "numpy"), min_pixels=56 * 56, patch=14, merge=2,
        mean=list(Qwen2VLImageProcessorPil.image_mean), std=list(Qwen2VLImageProcessorPil.image_std), images=records))
    write_json(OUT / "smart_resize.json", dict(
        about="each row is [width, height, min_pixels, max_pixels, resized width, resized height]; null where refused",
        made_by=versions("transformers"), factor=28, rows=[row(*size) for size in SIZES]))


SIZES = [(w, h, 56 * 56, DEFAULT_MAX) for w, h in [
    (1, 1), (1, 2), (2, 1), (1, 200), (200, 1), (1, 201), (201, 1), (3, 601), (10, 10), (13, 14), (14, 13), (14, 14), (28, 28),
    (42, 42), (70, 70), (98, 98), (41, 43), (56, 56), (57, 55), (126, 154), (640, 480), (1024, 768), (1000, 1000), (1001, 999),
    (1920, 1080), (4000, 3000), (3000, 4000), (12000, 100), (100, 12000), (20000, 101), (65535, 400), (5600, 28), (28, 5600),
    (5628, 28), (333, 250), (1176, 854)]] + [
    (640, 480, 56 * 56, 28 * 28 * 64), (640, 480, 28 * 28 * 1024, DEFAULT_MAX), (33, 6500, 56 * 56, 28 * 28 * 64),
    (500, 500, 28 * 28 * 256, 28 * 28 * 256), (30, 5990, 28 * 28 * 4, 28 * 28 * 16)]


def row(width, height, least, most):
    try:
        tall, wide = smart_resize(height, width, 28, least, most)
    except ValueError:
        tall = wide = None
    return [width, height, least, most, wide, tall]
