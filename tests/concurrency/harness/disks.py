"""What a round's directory lies on, where faults need a disk of its own: one that is small, or one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["ON_DISKS", "Disk", "not_possible", "on_a_disk"]

ON_DISKS = ("disk", "ro-mount", "ro-disk")
"""The faults that need one."""

PATIENCE = 20
"""Seconds after which nobody has a file open any more who was killed."""


class Disk:
    """A small disk of memory; or, with an image, one with a file system of its own, which can be made to fail."""

    def __init__(self, directory: Path, image: Path | None) -> None:
        self._directory, self._image = directory, image
        self._filler = directory / "filler"
        self._covered = False
        self.read_only: list[tuple[float, float]] = []
        """From when until when nothing could be written, or not by everybody: by `time.monotonic`."""
        self.failing: list[tuple[float, float]] = []
        """The same of when it failed."""
        if image is not None:
            with image.open("wb") as file:
                file.truncate(1 << 30)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        self._mount()

    def make_room(self) -> None:
        """A log that grew while somebody read may have filled the disk, and then it needs room to be written back."""
        if self._image is None:
            _run("mount", "-o", "remount,size=2g", str(self._directory))
        else:
            self.sync()  # of what was removed ext4 gives nothing away before that is written

    def sync(self) -> None:
        """What was written is on the disk then."""
        _run("sync", "--file-system", str(self._directory))

    def fill(self) -> None:
        """As another program does."""
        room = os.statvfs(self._directory)
        with suppress(OSError), self._filler.open("wb") as file:  # others fill it as well
            os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail - 2) * room.f_frsize)

    def empty(self) -> None:
        """Take away what filled it."""
        self.uncover()
        self._filler.unlink(missing_ok=True)

    def cover(self) -> None:
        """Whoever opens a file from now on finds it on a read-only mount. Who has it open goes on.

        The kernel refuses to make a mount read-only while a file is open for writing on it.
        """
        if not self._covered:
            self.read_only.append((time.monotonic(), inf))
            with TemporaryDirectory(dir=self._directory.parent) as aside:  # where nobody opens a file in between
                _run("mount", "--bind", str(self._directory), aside)
                _run("mount", "-o", "remount,ro,bind", aside)
                _run("mount", "--bind", aside, str(self._directory))
                self._covered = True
                _run("umount", aside)

    def uncover(self) -> None:
        """Whoever opens a file from now on may write."""
        if self._covered:
            _run("umount", "--lazy", str(self._directory))
            self._covered = False
            self._writable()

    def fail(self) -> None:
        """As after an error of the disk: from now on nothing is written any more, to no file, whoever has it open.

        What was not written through to the disk is lost, and so may be what is being written through in this moment:
        of one fsync in ten that is under way the kernel says that it was done. Only `mount_anew` makes it writable.
        """
        self.read_only.append((time.monotonic(), inf))
        _run("mount", "-o", "remount,abort", str(self._directory))

    def mount_anew(self) -> None:
        """With what the disk has. Nobody may have a file open."""
        ends = time.monotonic() + PATIENCE
        while subprocess.run(["umount", str(self._directory)], capture_output=True, timeout=60, check=False).returncode:
            if time.monotonic() > ends:
                raise AssertionError(f"somebody still has files open on {self._directory}")
            time.sleep(0.02)
        self._mount()
        self._writable()
        self.failing.append(self.read_only[-1])

    def close(self) -> None:
        self.uncover()
        _run("umount", "--lazy", str(self._directory))

    def _writable(self) -> None:
        since, _ = self.read_only.pop()
        self.read_only.append((since, time.monotonic()))

    def _mount(self) -> None:
        if self._image is None:
            _run("mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(self._directory))
        else:
            _run("mount", "-o", "loop", str(self._image), str(self._directory))


@contextmanager
def on_a_disk(directory: Path, faults: Collection[str]) -> Iterator[Disk | None]:
    """The disk that a directory lies on, if some of the faults need one."""
    if not any(fault in faults for fault in ON_DISKS):
        yield None
        return
    with ExitStack() as stack:
        image = None
        if "ro-disk" in faults:
            image = Path(stack.enter_context(TemporaryDirectory(prefix="qstore-disk-", dir=directory.parent)), "image")
        disk = Disk(directory, image)
        stack.callback(disk.close)
        yield disk


def not_possible(faults: Collection[str]) -> dict[str, str]:
    """Which of the faults there cannot be here, and why."""
    return {fault: why for fault in faults if fault in ON_DISKS if (why := _hindrance(fault))}


def _hindrance(fault: str) -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can mount a disk"
    try:
        with TemporaryDirectory(prefix="qstore-disk-") as parent:
            (directory := Path(parent, "mounted")).mkdir()
            with on_a_disk(directory, [fault]):
                return ""
    except (OSError, subprocess.SubprocessError) as error:
        return str(getattr(error, "stderr", None) or error).strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
