"""Two small C libraries put in front of libc (LD_PRELOAD): one notes every fsync of a log file, one shifts the wall clock.

Both need a C compiler; where there is none, the faults that use the libraries are skipped and say so.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# The size is read before the call, because a sync does not cover what is written while that sync runs.
_FSYNCS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int noted(int fd, const char *name) {
  static int (*real_sync)(int), (*real_data)(int);
  if (!real_sync) real_sync = dlsym(RTLD_NEXT, "fsync");
  if (!real_data) real_data = dlsym(RTLD_NEXT, "fdatasync");
  struct stat seen;
  int known = fstat(fd, &seen) == 0 && S_ISREG(seen.st_mode);
  int answer = name[1] == 'd' ? real_data(fd) : real_sync(fd);
  const char *path = getenv("FSYNC_NOTES");
  if (known && answer == 0 && path) {
    struct timespec now;
    char line[128];
    clock_gettime(CLOCK_REALTIME, &now);
    int size = snprintf(line, sizeof line, "%llu %lld %lld.%09ld\n", (unsigned long long)seen.st_ino,
                        (long long)seen.st_size, (long long)now.tv_sec, now.tv_nsec);
    int notes = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (notes >= 0) { if (write(notes, line, size) < 0) abort(); close(notes); }
  }
  return answer;
}
int fsync(int fd) { return noted(fd, "fsync"); }
int fdatasync(int fd) { return noted(fd, "fdatasync"); }
"""

_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
  static long seconds, known;
  if (!known) { const char *text = getenv("CLOCK_OFFSET_S"); seconds = text ? atol(text) : 0; known = 1; }
  return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int answer = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += offset();
  return answer;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  int answer = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec; now->tv_usec = exact.tv_nsec / 1000;
  return answer;
}
time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""
_SOURCES = {"fsyncs": _FSYNCS, "clock": _CLOCK}


class NoCompiler(RuntimeError):
    """This machine has no C compiler, so the fault cannot be injected here."""


def build(name: str, folder: Path) -> Path:
    """Build the library `fsyncs` or `clock` in `folder`, and return its path; raises `NoCompiler`."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler(f"the {name} shim needs a C compiler (cc, gcc or clang), and none is on the path")
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(_SOURCES[name])
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return library


@dataclass(frozen=True, slots=True)
class Fsync:
    """Everything up to `size` of the file `inode` was on the disk at Unix time `at`."""

    inode: int
    size: int
    at: float


def read_notes(path: Path) -> list[Fsync]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Fsync(int(inode), int(size), float(at)) for inode, size, at in map(str.split, lines)]
