"""Published data sets from where their authors keep them: whole, checked, and resumed where a download broke off.

Sizes and MD5 sums are those that the archives (figshare, Zenodo) state for their files. Sets that are published without
a checksum are not fetched.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlpot.errors import UserError, unknown

CHUNK = 1 << 20
TIMEOUT = 60.0  # s without a byte
Progress = Callable[[str, int, int], None]  # name of the file, bytes there, bytes in all


class Remote(NamedTuple):
    """A file, where it is, and what it must be."""

    name: str
    url: str
    size: int
    md5: str


class Published(NamedTuple):
    """A data set: its files, who made it, and what to do with them."""

    files: tuple[Remote, ...]
    citation: str
    then: str


SETS: dict[str, Published] = {
    "qm9": Published(
        (
            Remote(
                "dsgdb9nsd.xyz.tar.bz2",
                "https://ndownloader.figshare.com/files/3195389",
                86_144_227,
                "ad1ebd51ee7f5b3a6e32e974e5d54012",
            ),
        ),
        "Ramakrishnan et al., Sci. Data 1, 140022 (2014): 133,885 molecules, 15 properties, B3LYP/6-31G(2df,p)",
        "mlpot train dsgdb9nsd.xyz.tar.bz2 targets=[gap] train_size=110000 valid=10000 test=10831",
    ),
    "rmd17": Published(
        (
            Remote(
                "rmd17.tar.bz2",
                "https://ndownloader.figshare.com/files/23950376",
                1_066_301_513,
                "cb1a927628d96f2e966025da4fb63d18",
            ),
        ),
        "Christensen and von Lilienfeld, Mach. Learn.: Sci. Technol. 1, 045018 (2020): 10 molecules, PBE/def2-SVP",
        "tar -xjf rmd17.tar.bz2; mlpot train rmd17/npz_data/rmd17_ethanol.npz train_size=950 valid=50",
    ),
    "ani1x": Published(
        (
            Remote(
                "ani1x-release.h5",
                "https://ndownloader.figshare.com/files/18112775",
                5_590_846_027,
                "98090dd6679106da861f52bed825ffb7",
            ),
        ),
        "Smith et al., Sci. Data 7, 134 (2020): 5 million conformations of H, C, N, O",
        "mlpot data convert ani1x-release.h5 ani1x.h5",
    ),
    "spice": Published(
        (
            Remote(
                "SPICE-2.0.1.hdf5",
                "https://zenodo.org/records/10975225/files/SPICE-2.0.1.hdf5?download=1",
                37_479_271_148,
                "bfba2224b6540e1390a579569b475510",
            ),
        ),
        "Eastman et al., Sci. Data 10, 11 (2023), version 2.0.1: drug-like molecules, peptides and their surroundings",
        "mlpot data convert SPICE-2.0.1.hdf5 spice.h5",
    ),
}


def fetch(name: str, folder: Path, tell: Progress, sets: Mapping[str, Published] = SETS) -> list[Path]:
    """The files of a set in `folder`, fetched where they are not there yet; each is checked before it gets its name.

    Raises UserError for an unknown set, no network, a full disk, or a file that is not what it should be.
    """
    if name not in sets:
        raise unknown("data set", name, sets)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror}).") from None
    return [_fetched(remote, folder, tell) for remote in sets[name].files]


def _fetched(remote: Remote, folder: Path, tell: Progress) -> Path:
    target, part = folder / remote.name, folder / f".{remote.name}.part"
    if target.exists():
        if target.stat().st_size == remote.size and _digest(target).hexdigest() == remote.md5:
            tell(remote.name, remote.size, remote.size)
            return target
        raise UserError(f"{target}: is there, but is not the published file (size or MD5). Move it away to fetch it.")
    have = part.stat().st_size if part.exists() else 0
    free = shutil.disk_usage(folder).free
    if free < remote.size - have:
        raise UserError(f"{folder}: {(remote.size - have) / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free.")
    try:
        digest = _download(remote, part, tell)
    except (OSError, http.client.HTTPException) as error:  # what urllib raises, too
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        have = part.stat().st_size if part.exists() else 0
        kept = f" {have} of {remote.size} bytes are kept; the same command goes on from there." if have else ""
        raise UserError(
            f"{remote.url}: cannot be fetched ({reason}).{kept} Without a network: fetch it elsewhere and put it at "
            f"{target} ({remote.size} bytes, MD5 {remote.md5})."
        ) from None
    if part.stat().st_size != remote.size or digest != remote.md5:
        size = part.stat().st_size
        part.unlink()
        raise UserError(
            f"{remote.url}: what came is not the published file ({size} bytes, MD5 {digest}; expected {remote.size} "
            f"bytes, MD5 {remote.md5}). It was thrown away; try again, or elsewhere."
        )
    os.replace(part, target)
    return target


def _download(remote: Remote, part: Path, tell: Progress) -> str:
    """Go on from what is there; the MD5 of the whole, hex."""
    have = part.stat().st_size if part.exists() else 0
    digest = _digest(part) if have else _md5()
    if have >= remote.size:
        return str(digest.hexdigest())
    headers = {"User-Agent": "mlpot", **({"Range": f"bytes={have}-"} if have else {})}
    request = urllib.request.Request(remote.url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status not in (200, 206):
            raise OSError(f"the server answers with status {answer.status}")
        if answer.status == 200 and have:  # a server that does not resume sends all of it again
            have, digest = 0, _md5()
        with part.open("ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                have += len(chunk)
                tell(remote.name, have, remote.size)
    if have < remote.size:
        raise OSError("the connection broke off")
    return str(digest.hexdigest())


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _digest(path: Path) -> Any:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _md5)
