"""Build a release and try it: python tools/release.py [3.11 3.13 ...]

Builds the source distribution, and the wheel from it, into dist/. Installs the wheel in
a fresh virtual environment of every Python from 3.11 to 3.14 (or of those that are
named) that this machine has, and runs the first example of README.md there, whose
output must be the one that is shown, but for the digits. Publishes nothing. Without a
GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves a large download.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import rmtree, which

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE, SHOWN = (
    re.search(rf"^```{language}\n(.*?)^```$", README, re.M | re.S).group(1)
    for language in ("python", "text")
)
CHECK = """
import pathlib, skvi
assert "site-packages" in skvi.__file__, skvi.__file__
assert (pathlib.Path(skvi.__file__).parent / "py.typed").is_file()
"""


def run(*command):
    subprocess.run([str(part) for part in command], check=True)


def find_python(version):
    """Interpreter of a version on the path or in pyenv, None if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = versions.glob(f"{version}.*/bin/python{version}")
    for python in filter(None, [which(f"python{version}"), *installed]):
        found = subprocess.run([python, "-c", ""], capture_output=True, check=False)
        if found.returncode == 0:
            return python
    return None


def environment(python, folder, *packages):
    """Interpreter of a fresh virtual environment with some packages."""
    run(python, "-m", "venv", folder)
    own = Path(folder) / "bin" / "python"
    run(own, "-m", "pip", "install", "-q", *packages)
    return own


def smoke_test(python, folder):
    """Whether the example of the README prints what it shows, but for the digits."""
    command = [python, "-c", CHECK + EXAMPLE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(done.stdout + done.stderr, flush=True)
    found, shown = (re.sub(r"[-\d.]+", "#", text) for text in (done.stdout, SHOWN))
    return done.returncode == 0 and found == shown


def main(versions):
    rmtree(ROOT / "dist", ignore_errors=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        builder = environment(sys.executable, f"{folder}/build", "build")
        run(builder, "-m", "build", "--outdir", ROOT / "dist", ROOT)
        (wheel,) = (ROOT / "dist").glob("*.whl")
        for version in versions:
            if (python := find_python(version)) is None:
                results[version] = "skipped, there is none on this machine"
                continue
            own = environment(python, f"{folder}/{version}", wheel)
            results[version] = "passed" if smoke_test(own, folder) else "FAILED"
            rmtree(f"{folder}/{version}")
    for version, found in results.items():
        print(f"Python {version}: {found}")
    return int("FAILED" in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PYTHONS))
