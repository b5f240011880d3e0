"""Draw the pictures of the gallery: python doc/thumbnails.py [example ...].

Runs the examples, all or those named, on the data that come with scikit-learn, and
stores a small picture of each figure in doc/images/gallery.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "doc" / "images" / "gallery"


def thumbnail(script, folder):
    """Run an example, and store its picture in at most 400 by 300 pixels."""
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    environment.pop("SKVI_DATA", None)
    picture = Path(folder) / f"{script.stem}.png"
    command = [sys.executable, str(script), str(picture)]
    subprocess.run(command, env=environment, cwd=folder, check=True)
    with Image.open(picture) as image:
        small = image.convert("RGB")
    small.thumbnail((400, 300), Image.Resampling.LANCZOS)
    small.quantize(64).save(PICTURES / picture.name, optimize=True)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    names = sys.argv[1:] or sorted(p.stem for p in (ROOT / "examples").glob("plot_*"))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            thumbnail(ROOT / "examples" / f"{name}.py", folder)
