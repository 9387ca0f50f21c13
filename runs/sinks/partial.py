"""The partial folder of an output: owned by one run, it holds the journal and everything that is not published yet."""

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
class PartialFolder:
    """`<output>.partial/` beside a local output; for a URL, a folder below `state`."""

    folder: Path
    output: str

    def claim(self, run_id: str) -> None:
        """Create the folder and write the run's id into it; repeating this for the same run does no harm.

        Raises `Conflict` if another run writes this output, or stopped and left its rows here.
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

    def is_of(self, run_id: str) -> bool:
        """Whether the folder exists and belongs to the run."""
        mark = self.folder / _OWNER
        return mark.exists() and mark.read_text() == run_id

    def remove(self) -> None:
        """Remove everything that is not published, the journal included; a missing folder is no error."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_owner(self, mark: Path, run_id: str) -> None:
        # An empty mark means that its writer died between creating and filling it.
        owner = mark.read_text() or run_id
        if owner != run_id:
            raise Conflict(
                f"{self.output} belongs to run {owner}, which is running or stopped before its end",
                hint=f"continue it with `penstock run resume {owner}`, or give it up and remove {self.folder}",
            )
        mark.write_text(run_id)


def partial_of(output: str, state: Path) -> PartialFolder:
    if files.is_url(output):
        return PartialFolder(state / (hashlib.sha256(output.encode()).hexdigest()[:16] + SUFFIX), output)
    return PartialFolder(Path(files.local_path(output) + SUFFIX), output)
