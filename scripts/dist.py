"""
Build the source distribution and the wheel into ``dist/``, and check them.

Both are built again from the unpacked source distribution, and must come out the same byte for byte.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
DIST = PROJECT / "dist"
# All of pyroma's 10 points but those for an author and a URL of the project.
PYROMA_MINIMUM = "7"


def build(sources: Path, folder: Path) -> dict[str, bytes]:
    """
    Build the source distribution, and the wheel from it.

    :param folder: for the two files
    :return: their contents, by name
    """
    command = ["sh", "scripts/uv.sh", sys.prefix, "build", "--quiet", "--clear", "--out-dir", str(folder)]
    command += ["--build-constraints", str(PROJECT / "constraints" / "dist.txt"), str(sources)]
    subprocess.run(command, cwd=PROJECT, check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".gz", ".whl")}


def check(tool: str, *arguments: str) -> None:
    """Run a tool over what was built, and exit if it finds a fault."""
    print(f"\n{tool}:", flush=True)
    if code := subprocess.run([sys.executable, "-m", tool, *arguments], cwd=PROJECT, check=False).returncode:
        sys.exit(code)


def main() -> None:
    """Build, check, and print what was built."""
    built = build(PROJECT, DIST)
    sdist, wheel = sorted(built, key=lambda name: name.endswith(".whl"))
    with tempfile.TemporaryDirectory() as elsewhere:
        with tarfile.open(DIST / sdist) as archive:
            archive.extractall(elsewhere, filter="data")
        (sources,) = Path(elsewhere).iterdir()
        again = build(sources, Path(elsewhere, "dist"))
    if different := [name for name in built if again.get(name) != built[name]]:
        sys.exit(f"Not reproducible: {', '.join(different)}")
    check("twine", "check", "--strict", *(str(DIST / name) for name in built))
    check("check_wheel_contents", str(DIST / wheel))
    check("pyroma", "--min", PYROMA_MINIMUM, str(DIST / sdist))
    print()
    for name, content in built.items():
        print(f"{len(content):>9,} bytes  sha256 {sha256(content).hexdigest()}  dist/{name}")
    print("Built twice, with the same bytes.")


if __name__ == "__main__":
    main()
