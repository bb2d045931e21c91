"""Starts the weft binary as a server on a free port and stops it again."""
import re
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"ready in .* on http://([0-9.:]+)")


class Server:
    """`with Server(binary, ["--model", "name=path"]) as url:`; the server's log is shown when the block fails."""

    def __init__(self, weft, words):
        self.command = [str(weft), "serve", "--listen", "127.0.0.1:0", *words]
        self.log = []

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for line in self.process.stderr:
            self.log.append(line)
            if found := READY.search(line):
                threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
                return f"http://{found.group(1)}"
        raise SystemExit("the server did not become ready:\n" + "".join(self.log))

    def __exit__(self, kind, *_):
        if kind:
            print("".join(self.log[-40:]))
        self.process.terminate()
        code = self.process.wait(timeout=30)
        assert kind or code == 0, f"the server ended with {code} on SIGTERM"
