"""Speaks with espeak-ng's library, in process. Owns the voices and which of them are kept out of training."""
import ctypes
import glob
import os

import numpy as np

RATE = 22050
LANGUAGES = ("en-us", "en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbclan", "en-us-nyc", "en-us", "en-gb")
# Noise rather than voices, or too far from speech.
UNFIT = {"whisper", "whisperf", "croak", "fast", "Demonic", "UniRobot", "anikaRobot", "Tweaky", "Mr serious"}
HELD = {"f3", "m5", "Annie", "Hugo", "linda", "klatt4", "edward", "belinda", "max", "Andy"}
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Speaker:
    """One a process: the library has global state."""

    def __init__(self, folder, held):
        for name in ("libpcaudio.so.0", "libsonic.so.0"):
            ctypes.CDLL(os.path.join(folder, name), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(os.path.join(folder, "libespeak-ng.so.1"))
        # Asynchronous playback is 0, retrieval 1, synchronous retrieval 2.
        if self.lib.espeak_Initialize(2, 0, folder.encode(), 0) != RATE:
            raise OSError(f"espeak-ng did not start from {folder}; run assets.py again")
        self.pieces = []
        self.callback = _CALLBACK(self._take)
        self.lib.espeak_SetSynthCallback(self.callback)
        names = {os.path.basename(p) for p in glob.glob(folder + "/espeak-ng-data/voices/!v/*")} - UNFIT
        names = sorted(n for n in names if not n.startswith("robosoft"))
        variants = [n for n in names if (n in HELD) == held]
        self.voices = [f"{l}+{v}" for l in (("en-us", "en-gb") if held else LANGUAGES) for v in variants]
        if not held:
            self.voices += [l for l in LANGUAGES] * 8

    def _take(self, samples, count, _events):
        if samples and count > 0:
            self.pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, r, text):
        """Float32 samples of `text` in some voice, silence at both ends cut."""
        lib, self.pieces = self.lib, []
        lib.espeak_SetVoiceByName(r.choice(self.voices).encode())
        for parameter, value in ((1, r.randint(120, 205)), (3, r.randint(20, 80)), (4, r.randint(25, 75))):
            lib.espeak_SetParameter(parameter, value, 0)
        data = text.encode() + b"\0"
        lib.espeak_Synth(data, len(data), 0, 0, 0, 1, None, None)
        x = np.concatenate(self.pieces).astype(np.float32) / 32768 if self.pieces else np.zeros(1, np.float32)
        loud = np.flatnonzero(np.abs(x) > .004)
        return x[loud[0]: loud[-1] + 1] if len(loud) else x
