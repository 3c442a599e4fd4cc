"""Compiles each WGSL text of a JSON list on stdin, on the first device, and writes a line to stderr before each.

The driver's compiler prints to stderr, too. `tools.gpu_compilers` runs this in a process of its own, since a driver
reads its settings when it is loaded.
"""

from __future__ import annotations

import json
import os
import sys

from rnn_engine.gpu import native, open_device


def main() -> None:
    device = open_device("0").wgpu_device
    for number, text in enumerate(json.load(sys.stdin)):
        os.write(2, f"\n@@ {number}\n".encode())
        module = native.create_trusted_module(device, str(number), text)
        device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})


main()
