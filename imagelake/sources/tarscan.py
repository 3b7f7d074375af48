"""The headers of a tar: which members lie where. Nothing is extracted and no member's data are read.

Written on tarfile's header parser instead of tarfile.TarFile, which ends silently at a bad header, reads extended
headers of any size into memory, and keeps every member.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

BLOCK = 512
MAX_EXTENDED_HEADER_BYTES = 1 << 20
_TRAILER_CHUNK = 1 << 20
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
_UNSAFE_TYPES = {
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
    tarfile.GNUTYPE_SPARSE: "sparse file",
}
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstandard


@dataclass(frozen=True, slots=True)
class Member:
    """`offset` and `size` in bytes of the data. `unsafe`: why the member must not be used; `is_cut`: the file ends
    inside its data.
    """

    name: str
    offset: int
    size: int
    unsafe: str | None = None
    is_cut: bool = False


@dataclass(slots=True)
class TarScan:
    """Iterate once over the members; afterwards `incomplete` says how the archive ends before its end, null when it
    is whole.
    """

    descriptor: int
    file_size: int
    incomplete: str | None = None
    _extended: dict[str, str] = field(default_factory=dict)
    _unsafe: str | None = None

    def __iter__(self) -> Iterator[Member]:
        offset = 0
        while (info := self._header(offset)) is not None:
            data = offset + BLOCK
            if info.type == tarfile.GNUTYPE_SPARSE:
                data += self._sparse_map_bytes(offset)
            size = self._size(info)
            if info.type in _EXTENSIONS:
                self._extend(info, data, size)
            elif info.type != tarfile.XGLTYPE:
                member = self._member(info, data, size)
                if member is not None:
                    yield member
                self._extended, self._unsafe = {}, None
            if data + size > self.file_size:
                self.incomplete = f"cut inside {info.name!r}, {self.file_size} of at least {data + size} bytes are here"
                return
            offset = data + -(-size // BLOCK) * BLOCK

    def _header(self, offset: int) -> tarfile.TarInfo | None:
        """The header at `offset`; None at the end of what can be read, with `incomplete` set where that is too early."""
        block = os.pread(self.descriptor, BLOCK, offset)
        if len(block) == BLOCK and not any(block):
            self.incomplete = self._trailer(offset)
            return None
        if len(block) < BLOCK:
            self.incomplete = f"cut inside a header at byte {offset}" if block else "ends without the end-of-archive blocks"
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            self.incomplete = f"no valid header at byte {offset}: {error}"
            return None
        if info.size < 0:
            self.incomplete = f"negative size in the header at byte {offset}"
            return None
        return info

    def _trailer(self, offset: int) -> str | None:
        """What lies behind the end: only zeros may. Joined tars have a second archive here, which other readers lose
        in silence.
        """
        while chunk := os.pread(self.descriptor, _TRAILER_CHUNK, offset):
            if chunk.count(0) != len(chunk):
                return f"data behind the end of the archive, from byte {offset} on, are not read"
            offset += len(chunk)
        return None

    def _size(self, info: tarfile.TarInfo) -> int:
        if info.type in _WITHOUT_DATA:
            return 0  # whatever such a header says about size, no data follow
        size = self._extended.get("size", "")
        is_member = info.type not in (*_EXTENSIONS, tarfile.XGLTYPE)
        return int(size) if is_member and size.isdecimal() and len(size) < 20 else info.size

    def _extend(self, info: tarfile.TarInfo, offset: int, size: int) -> None:
        if size > MAX_EXTENDED_HEADER_BYTES:
            self._unsafe = f"extended header of {size} bytes"
            return
        data = os.pread(self.descriptor, size, offset)
        if info.type == tarfile.GNUTYPE_LONGNAME:
            self._extended["path"] = _text(data.rstrip(b"\0"))
        elif info.type != tarfile.GNUTYPE_LONGLINK:
            records = _pax_records(data)
            if records is None:
                self._unsafe = "unreadable extended header"
            else:
                self._extended |= records

    def _member(self, info: tarfile.TarInfo, offset: int, size: int) -> Member | None:
        name = self._extended.get("path", info.name)
        unsafe = self._unsafe or _unsafe(info, name)
        if unsafe is None and info.isdir():
            return None
        if unsafe is None and any(key.startswith("GNU.sparse") for key in self._extended):
            unsafe = "sparse file"
        return Member(name, offset, size, unsafe, is_cut=offset + size > self.file_size)

    def _sparse_map_bytes(self, offset: int) -> int:
        """Bytes of the extra blocks that old GNU sparse headers put before the data."""
        total, flag = 0, 482
        while True:
            block = os.pread(self.descriptor, BLOCK, offset + total)
            if len(block) < BLOCK or not block[flag]:
                return total
            total, flag = total + BLOCK, 504


def _unsafe(info: tarfile.TarInfo, name: str) -> str | None:
    if info.type in _UNSAFE_TYPES:
        return _UNSAFE_TYPES[info.type]
    if not info.isreg() and not info.isdir():
        return f"member of unknown type {info.type!r}"
    if name.startswith("/"):
        return "absolute name"
    if ".." in name.split("/"):
        return "name that leads upwards"
    return "name with a NUL" if "\0" in name else None


def _pax_records(data: bytes) -> dict[str, str] | None:
    """ "LENGTH KEY=VALUE\\n" records; None when they are malformed."""
    records: dict[str, str] = {}
    data, start = data.rstrip(b"\0"), 0
    while start < len(data):
        digits, space, _ = data[start : start + 20].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 2 < int(digits) <= len(data) - start:
            return None
        end = start + int(digits)
        key, sign, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not sign:
            return None
        records[_text(key)] = _text(value)
        start = end
    return records


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def why_no_tar(descriptor: int) -> str | None:
    """Why a file cannot be a tar at all, by its first block; null when it can."""
    block = os.pread(descriptor, BLOCK, 0)
    if not block:
        return "is empty"
    if block.startswith(_COMPRESSED):
        return "is compressed: decompress it first"
    if len(block) < BLOCK:
        return "is no tar: shorter than one header"
    if not any(block):
        return None  # an archive without members
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        return f"is no tar: {error}"
    return None
