"""The partial folder of an output: claimed by one run, holds its journal and everything not yet published."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import Conflict
from penstock.runs import files

SUFFIX = ".partial"
_OWNER = "run"


@dataclass(frozen=True, slots=True)
class Partial:
    """`<output>.partial/` beside a local output; below the folder `state` for one that lies behind a URL."""

    folder: Path
    output: str

    def claim(self, run_id: str) -> None:
        """Make the folder and put the run's name on it; again for the same run is fine.

        Raises `Conflict` where another run is at work on this output, or was and left its rows here.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / _OWNER
        try:
            handle = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            self._check_owner(mark, run_id)
            return
        with os.fdopen(handle, "w") as file:
            file.write(run_id)
            file.flush()
            os.fsync(file.fileno())
        files.sync_folder(self.folder)
        files.sync_folder(self.folder.parent)

    def remove(self) -> None:
        """Give up all that is not published, the journal too; nothing happens where nothing is."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_owner(self, mark: Path, run_id: str) -> None:
        # Empty: its writer died between making and filling it.
        owner = mark.read_text() or run_id
        if owner != run_id:
            raise Conflict(
                f"{self.output} is being written by run {owner}, or was when that run stopped",
                hint=f"penstock run resume {owner}, or penstock run cancel {owner}, or remove {self.folder}",
            )
        mark.write_text(run_id)


def partial_of(output: str, state: Path) -> Partial:
    if files.is_url(output):
        return Partial(state / (hashlib.sha256(output.encode()).hexdigest()[:16] + SUFFIX), output)
    return Partial(Path(files.local_path(output) + SUFFIX), output)
