"""Writes the smallest possible image, one static program, without any tools: a Docker archive that containerd loads."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path


def write_archive(file: Path, name: str, program: Path) -> None:
    """Write an image with a program at its root, which is its entry point.

    Args:
        file: The archive.
        name: The image's name and tag.
        program: A program that needs no libraries.
    """
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(configuration), "manifest.json": json.dumps(manifest)}
    content = {each: (text.encode(), 0o644) for each, text in files.items()}
    file.write_bytes(_tar({**content, "layer.tar": (layer, 0o644)}))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
