"""Odd and broken files: every container of one spoken clip, and files that must be refused with the right class."""
import shutil
import struct
import subprocess
import zlib

import numpy as np
import soxr

from .common import GOLDEN, speak, tool_version, versions, write_json
from .images import photo

OUT = GOLDEN / "media_fixtures" / "odd"
WORDS = "The blue door opens at seven in the evening."
EXACT = ("-flags", "+bitexact", "-fflags", "+bitexact", "-map_metadata", "-1")

SHORT = ("-t", "1.2")  # for the bulky ones

# file name -> (ffmpeg output options, note)
ENCODINGS = {
    "clip.flac": (["-c:a", "flac"], "FLAC"),
    "clip_cbr.mp3": (["-c:a", "libmp3lame", "-b:a", "48k"], "MP3, constant rate"),
    "clip_vbr.mp3": (["-c:a", "libmp3lame", "-q:a", "5"], "MP3, variable rate"),
    "clip.ogg": (["-c:a", "libvorbis", "-q:a", "2"], "Ogg Vorbis"),
    "clip.opus": (["-c:a", "libopus", "-b:a", "24k"], "Ogg Opus, decodes to 48 kHz"),
    "clip_opus.webm": (["-c:a", "libopus", "-b:a", "24k"], "WebM with Opus"),
    "clip_end.m4a": (["-c:a", "aac", "-b:a", "48k"], "AAC, index (moov) at the end"),
    "clip_front.m4a": (["-c:a", "aac", "-b:a", "48k", "-movflags", "+faststart"], "AAC, index at the front"),
    "clip.aac": (["-c:a", "aac", "-b:a", "48k", "-f", "adts"], "AAC in ADTS frames, no container"),
    "clip_24bit.wav": ([*SHORT, "-c:a", "pcm_s24le"], "24-bit WAV, WAVE_FORMAT_EXTENSIBLE"),
    "clip_float.wav": ([*SHORT, "-c:a", "pcm_f32le"], "32-bit float WAV"),
    "clip_8bit.wav": ([*SHORT, "-c:a", "pcm_u8"], "8-bit unsigned WAV"),
    "clip_mulaw.wav": ([*SHORT, "-c:a", "pcm_mulaw"], "mu-law WAV"),
    "clip_stereo44.wav": ([*SHORT, "-ac", "2", "-ar", "44100", "-c:a", "pcm_s16le"], "stereo, 44.1 kHz, right channel at half level"),
    "clip_stereo44.mp3": (["-ac", "2", "-ar", "44100", "-c:a", "libmp3lame", "-b:a", "64k"], "stereo MP3, 44.1 kHz"),
    "clip_8k.wav": ([*SHORT, "-ar", "8000", "-c:a", "pcm_s16le"], "8 kHz WAV"),
    "clip_riffless.raw": (["-t", "0.1", "-f", "s16le", "-c:a", "pcm_s16le"], "raw samples without a header"),
}


def envelope(samples, rate):
    """Root mean square of every 50 ms, in thousandths: what survives lossy coding and small delays."""
    step = rate // 20
    return [round(1000 * float(np.sqrt(np.mean(samples[i: i + step].astype(np.float64) ** 2)))) for i in range(0, len(samples), step)]


def decode(path):
    """ffmpeg's opinion: interleaved f32 at the file's own rate."""
    probe = subprocess.run(["ffprobe", "-v", "error", "-show_entries", "stream=sample_rate,channels", "-of", "csv=p=0", str(path)],
                           capture_output=True, text=True, check=True).stdout
    rate, channels = map(int, probe.split()[0].split(",")[:2])
    raw = subprocess.run(["ffmpeg", "-v", "error", "-i", str(path), "-f", "f32le", "-c:a", "pcm_f32le", "-"],
                         capture_output=True, check=True).stdout
    return rate, np.frombuffer(raw, np.float32).reshape(-1, channels)


def encodings():
    clip = OUT / "clip.wav"
    speak(WORDS, clip, "en-us", 165)
    records = [dict(file="clip.wav", note="16-bit WAV, the source of the others", words=WORDS)]
    for file, (options, note) in ENCODINGS.items():
        right = ["-af", "pan=stereo|c0=c0|c1=0.5*c0"] if "stereo" in file else []
        subprocess.run(["ffmpeg", "-v", "error", "-y", "-i", str(clip), *right, *options, *EXACT, str(OUT / file)], check=True)
        records.append(dict(file=file, note=note))
    for record in records:
        path = OUT / record["file"]
        if path.suffix == ".raw":
            record["expect"] = "unsupported"
            continue
        rate, samples = decode(path)
        mono = samples.mean(1)
        record.update(expect="ok", rate=rate, channels=samples.shape[1], seconds=round(len(mono) / rate, 4),
                      envelope_50ms=envelope(mono, rate))
    rate, samples = decode(OUT / "clip_stereo44.wav")
    mono = samples.mean(1)
    reference = soxr.resample(mono, rate, 16000, quality="VHQ")
    pcm = np.clip(np.round(reference * 32767), -32768, 32767).astype("<i2")
    path = OUT / "clip_stereo44.expected.flac"
    subprocess.run(["sox", "-V1", "-D", "-t", "raw", "-r", "16000", "-e", "signed", "-b", "16", "-c", "1", "-", str(path)],
                   input=pcm.tobytes(), check=True)
    next(r for r in records if r["file"] == "clip_stereo44.wav")["resampled_16k_mono"] = path.name
    return records


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def wav(channels, rate, bits, data, kind=1, declared=None):
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * block, block, bits)
    size = len(data) if declared is None else declared
    return (b"RIFF" + struct.pack("<I", (36 + size) & 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<I", 16) + form
            + b"data" + struct.pack("<I", size) + data)


def broken():
    """(file, class, note, bytes). Classes are those of the service's errors."""
    photo(160, 120, 40).save(OUT / "good.jpg", quality=88)
    photo(64, 64, 41).save(OUT / "good.png", optimize=True)
    jpeg, small = (OUT / "good.jpg").read_bytes(), (OUT / "good.png").read_bytes()
    mp3, speech = (OUT / "clip_cbr.mp3").read_bytes(), (OUT / "clip.wav").read_bytes()
    damaged = bytearray(small)
    damaged[len(damaged) // 2] ^= 0xFF
    noisy = bytearray(mp3)
    noisy[len(noisy) // 2: len(noisy) // 2 + 300] = bytes(range(256)) + bytes(44)
    tone = (10000 * np.sin(np.arange(1600) * 0.2)).astype("<i2").tobytes()
    heic = struct.pack(">I", 24) + b"ftypheic" + bytes(4) + b"mif1heic" + bytes(64)
    return [
        ("truncated.jpg", "malformed", "JPEG cut after half of its bytes", jpeg[: len(jpeg) // 2]),
        ("truncated.png", "malformed", "PNG cut after half of its bytes", small[: len(small) // 2]),
        ("damaged.png", "malformed", "PNG with a wrong checksum in its data", bytes(damaged)),
        ("header_only.jpg", "malformed", "the first 20 bytes of a JPEG", jpeg[:20]),
        ("empty.jpg", "malformed", "no bytes", b""),
        ("empty.wav", "malformed", "no bytes", b""),
        ("text.jpg", "unsupported", "plain text named .jpg", b"This is not a picture.\n" * 8),
        ("text.wav", "unsupported", "plain text named .wav", b"This is not a sound.\n" * 8),
        ("page.html", "unsupported", "an HTML page", b"<!doctype html><title>404</title><p>Not found\n"),
        ("vector.svg", "unsupported", "SVG", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>\n'),
        ("photo.heic", "unsupported", "HEIC brand, no picture inside", heic),
        ("huge_declared.png", "too large", "declares 60000 x 60000 pixels in 80 bytes", png(60000, 60000, 8, 2, zlib.compress(b"\0"))),
        ("bomb.png", "too large", "24000 x 24000 one-bit pixels, 576 million of them in 70 kB",
         png(24000, 24000, 1, 0, zlib.compress(bytes(3001 * 24000), 9))),
        ("zero_size.png", "malformed", "declares 0 x 0 pixels", png(0, 0, 8, 2, zlib.compress(b""))),
        ("strip.png", "malformed", "1 x 300 pixels: aspect ratio above 200", png(1, 300, 8, 0, zlib.compress(b"\0\x80" * 300))),
        ("zero_seconds.wav", "malformed", "valid header, no samples", wav(1, 16000, 16, b"")),
        ("header_only.wav", "malformed", "the first 30 bytes of a WAV", speech[:30]),
        ("zero_rate.wav", "malformed", "sample rate 0", wav(1, 0, 16, tone)),
        ("zero_channels.wav", "malformed", "no channels", wav(0, 16000, 16, tone)),
        ("unknown_codec.wav", "unsupported", "format tag 0x0161 (WMA)", wav(1, 16000, 16, tone, kind=0x0161)),
        ("long_declared.wav", "ok", "header declares 4 GB, 0.1 s is there: what is there is used", wav(1, 16000, 16, tone, declared=0xFFFFFF00)),
        ("damaged.mp3", "ok", "MP3 with 300 damaged bytes in the middle: the bad frames are skipped", bytes(noisy)),
        ("random.bin", "unsupported", "noise", np.random.default_rng(9).bytes(2000)),
    ]


def odd():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    audio = encodings()
    records = []
    for file, kind, note, data in broken():
        (OUT / file).write_bytes(data)
        records.append(dict(file=file, expect=kind, note=note, bytes=len(data)))
    write_json(OUT / "odd.json", dict(
        about="audio: one clip in many containers, decoded by ffmpeg (mono is the mean of the channels; envelope_50ms is the "
              "root mean square of each 50 ms times 1000); broken: the error class that each file must give, or ok",
        made_by=versions("numpy", "soxr", "pillow") | {"ffmpeg": tool_version("ffmpeg", "-version").split(" Copyright")[0],
                                                       "espeak-ng": tool_version("espeak-ng", "--version").split("  ")[0]},
        audio=audio, broken=records))
