"""The images of compose/Dockerfile, built from this tree: `python -m tests.compose.images` says how large they are."""

from __future__ import annotations

import sys

import penstock
from tests.compose.stack import BUILD_ARGS, ROOT, Refused, docker, missing_tool

# What an image may add to the base image, whose size differs between the places that it comes from. In megabytes.
LIMITS_MB = {"onnx": 250, "torch": 1_500}
IMAGE = f"penstock:{penstock.__version__}-onnx"


def image_of(target: str, tag: str) -> None:
    """Build one target of the Dockerfile from this tree."""
    file = str(ROOT / "compose" / "Dockerfile")
    docker("build", "-q", *BUILD_ARGS, "-f", file, "--target", target, "-t", tag, str(ROOT), timeout_s=1_800)


def added_mb(tag: str) -> float:
    """The layers from our first one on; `docker history` lists the newest first."""
    rows = docker("history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", tag).splitlines()
    first = max(number for number, row in enumerate(rows) if "compose/prepare.sh" in row)
    return sum(int(row.split(maxsplit=1)[0]) for row in rows[: first + 1]) / 10**6


def main() -> int:
    """0: all images are within their limits."""
    why = missing_tool()
    if why:
        print(why, file=sys.stderr)
        return 1
    try:
        return int(sum(_is_too_large(target) for target in LIMITS_MB) > 0)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1


def _is_too_large(target: str) -> bool:
    tag, limit = f"penstock:{penstock.__version__}-{target}", LIMITS_MB[target]
    image_of(target, tag)
    added = added_mb(tag)
    print(f"{tag}: adds {added:.0f} MB to its base image, limit {limit} MB{', TOO LARGE' if added > limit else ''}", flush=True)
    return added > limit


if __name__ == "__main__":
    sys.exit(main())
