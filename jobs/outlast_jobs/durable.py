"""The one durable write, and reads that follow no link: whatever must survive a kill goes through here.

Each act is an audit event (PEP 578) before it is done: `outlast.write`, `outlast.rename`, `outlast.discard` and
`outlast.sync`, with the paths that it is about. By them `outlast drill` strikes between two acts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from msgspec import Struct

from outlast_jobs.beneath import open_at, open_parent
from outlast_jobs.blocks import Hasher, Image, fill
from outlast_jobs.errors import Malformed, NotRegular
from outlast_jobs.filesystem import on_local_disk

TEMPORARY = ".tmp-"
TRASH = ".trash-"
NAME_LIMIT = 50  # characters of a name that are kept in those of what is hidden

_PIECE = 8 << 20  # small enough that progress moves and a cancel is heard, large enough to cost nothing
_MAX_DEPTH = 64
_TRIES = 3  # of a deletion: what is left of it would keep its room until somebody looks
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


T = TypeVar("T")


class Written(Struct, frozen=True):
    """What a durable write left on disk."""

    bytes: int
    sha256: str


def write_file(
    path: Path,
    chunks: bytes | Iterable[bytes | bytearray | memoryview] | Image,
    *,
    fsync: bool = True,
    mode: int = 0o666,
    progress: Callable[[int], None] | None = None,
    root: Path | None = None,
) -> Written:
    """Write ``chunks`` to ``path``, which must be free, hashing as they go; on any failure the partial file is removed.

    An `Image` is written in blocks, past the page cache where the disk is a local one.
    Durable is the content; the name is only after ``fsync_dir`` of the folder.
    ``progress`` is told the bytes of each piece after it was written; what it raises ends the write.
    With ``root``, a folder above ``path``, no symbolic link between the two is followed.
    """
    sys.audit("outlast.write", str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    if root is None:
        fd = os.open(path, flags, mode)
        return _fill(fd, path, chunks, fsync, progress, lambda: os.unlink(path))
    parent = open_parent(root, path)  # kept, so that the partial file is removed where it was made
    try:
        fd = open_at(parent, path, flags, mode)
        return _fill(fd, path, chunks, fsync, progress, lambda: os.unlink(path.name, dir_fd=parent))
    finally:
        os.close(parent)


def _fill(
    fd: int,
    path: Path,
    chunks: bytes | Iterable[bytes | bytearray | memoryview] | Image,
    fsync: bool,
    progress: Callable[[int], None] | None,
    remove: Callable[[], None],
) -> Written:
    digest = hashlib.sha256()
    try:
        if isinstance(chunks, Image):
            total = fill(fd, chunks, digest, direct=on_local_disk(path.parent), progress=progress)
        else:
            total = _stream(fd, chunks, digest, progress)
        size = os.fstat(fd).st_size
        if size != total:
            raise OSError(errno.EIO, f"wrote {total} bytes and the file has {size}", str(path))
        if fsync:
            os.fsync(fd)
    except BaseException:
        _quietly(lambda _: remove(), None)
        _quietly(os.close, fd)
        raise
    try:
        os.close(fd)  # a network file system may say only here that the bytes did not arrive
    except OSError:
        _quietly(lambda _: remove(), None)
        raise
    return Written(total, digest.hexdigest())


def _stream(
    fd: int,
    chunks: bytes | Iterable[bytes | bytearray | memoryview],
    digest: Hasher,
    progress: Callable[[int], None] | None,
) -> int:
    total = 0
    for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
        for piece in _pieces(chunk):
            _write_all(fd, piece)
            digest.update(piece)
            total += piece.nbytes
            if progress is not None:
                progress(piece.nbytes)
    return total


def replace_file(
    path: Path, data: bytes, *, durable: bool = True, mode: int = 0o666, root: Path | None = None
) -> None:
    """Put ``data`` at ``path`` as a whole: readers see the old content or the new, never a part."""
    temporary = path.with_name(f"{TEMPORARY}{path.name[:NAME_LIMIT]}-{_unique()}")
    if root is not None:
        _replace_beneath(root, temporary, path, data, durable, mode)
        return
    write_file(temporary, data, fsync=durable, mode=mode)
    try:
        os.replace(temporary, path)
    except BaseException:
        _quietly(os.unlink, temporary)
        raise
    if durable:
        fsync_dir(path.parent)


def _replace_beneath(root: Path, temporary: Path, path: Path, data: bytes, durable: bool, mode: int) -> None:
    write_file(temporary, data, fsync=durable, mode=mode, root=root)
    parent = open_parent(root, path)
    try:
        try:
            os.replace(temporary.name, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            _quietly(lambda name: os.unlink(name, dir_fd=parent), temporary.name)
            raise
        if durable:
            fsync_dir(Path(f"/proc/self/fd/{parent}"))
    finally:
        os.close(parent)


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    sys.audit("outlast.sync", str(path))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no fsync of folders: nothing to do
            raise
    finally:
        os.close(fd)


def publish_dir(source: Path, target: Path) -> None:
    """Rename a folder to a name that must be free (else FileExistsError), and make both parents durable."""
    rename_to_free_name(source, target)
    fsync_dir(target.parent)
    if source.parent != target.parent:
        try:
            fsync_dir(source.parent)
        except FileNotFoundError:
            pass  # fenced right after: the new name is durable, and the old one is gone with its folder


def rename_to_free_name(source: Path, target: Path) -> None:
    """``rename`` that refuses any existing target; plain ``rename`` replaces files and empty folders."""
    import ctypes  # here: 5 ms that most processes need not pay

    sys.audit("outlast.rename", str(source), str(target))
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is not None:
        old, new = os.fsencode(source), os.fsencode(target)
        if rename(_AT_FDCWD, old, _AT_FDCWD, new, ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
            return
        code = ctypes.get_errno()
        # NFS and others know no flags and say EINVAL; a renamed folder into itself does too, and fails below.
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(source), None, str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(source), None, str(target))
    os.rename(source, target)


def discard(path: Path, trash_parent: Path, *, durable: bool = True) -> Path:
    """Rename ``path`` out of sight; its content is still there, under the name returned.

    Unless ``durable`` the caller syncs ``trash_parent`` before anything in it is deleted.
    """
    sys.audit("outlast.discard", str(path))
    trash = trash_parent / f"{TRASH}{path.name.lstrip('.')[:NAME_LIMIT]}-{_unique()}"
    # what has become a link must not lead us to take another's things away
    parent = open_folder(trash_parent)
    try:
        inside = path.parent == trash_parent
        source = path.name if inside else path
        os.rename(source, trash.name, src_dir_fd=parent if inside else None, dst_dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(parent)
    if durable:  # before any deletion: a half-emptied folder must not come back under its old name
        fsync_dir(trash_parent)
    return trash


def remove_tree(path: Path, trash_parent: Path) -> None:
    """Delete a file or folder: first out of sight, then from the disk. No link is followed."""
    delete_tree(discard(path, trash_parent))


def empty_trash(parent: Path) -> OSError | None:
    """Delete what was discarded in a folder; why some of it could not be, tried again, and stays for the next time."""
    error: OSError | None = None
    for name in os.listdir(parent):
        if not name.startswith(TRASH):
            continue
        for left in reversed(range(_TRIES)):
            try:
                delete_tree(parent / name)
                break
            except OSError as found:
                error = error if left else found
    return error


def delete_tree(path: Path) -> None:
    """Delete what lies at ``path``, following no link, also none to its folder. Missing entries are no error."""
    parent = open_folder(path.parent)
    try:
        _delete_at(parent, path.name, 0)
    finally:
        os.close(parent)


def open_folder(path: str | Path, *, dir_fd: int | None = None) -> int:
    """A descriptor of a real folder: a symbolic link in its place is an error (ELOOP or ENOTDIR)."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """A descriptor for reading a regular file; anything else is NotRegular and is not waited for.

    Looked at before it is opened, since opening some devices acts on them, and again after, since
    it may have been swapped in between.
    """
    require_regular(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode, path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegular(f"{str(path)!r} is a symbolic link, not a regular file") from None
        raise
    try:
        require_regular(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_file(path: str | Path, limit: int, *, dir_fd: int | None = None) -> bytes:
    """The content of a regular file of at most ``limit`` bytes; a larger one is Malformed and not read."""
    fd = open_regular(path, dir_fd=dir_fd)
    try:
        return read_whole(fd, limit, what=str(path))
    finally:
        os.close(fd)


def read_whole(fd: int, limit: int, *, what: str) -> bytes:
    """All of an open file of at most ``limit`` bytes."""
    size = os.fstat(fd).st_size
    content = bytearray()
    if size <= limit:
        buffer = bytearray(min(size + 1, _PIECE))
        with memoryview(buffer) as view:
            while len(content) <= limit and (got := read_into(fd, view)):
                content += view[:got]
        size = len(content)
    if size > limit:
        raise Malformed(f"{what!r} has {size} bytes or more; at most {limit} are read")
    return bytes(content)


def read_into(fd: int, buffer: memoryview) -> int:
    """The single read of everything that is checked; 0 at the end of the file."""
    return os.readv(fd, [buffer])


def skip_hole(file: BinaryIO) -> None:
    """Go on where the next bytes lie that were ever written: a hole of terabytes costs its maker nothing."""
    fd, at = file.fileno(), file.tell()
    ahead = os.lseek(fd, 0, os.SEEK_CUR)  # where the buffered reader is, and must find itself again
    try:
        data = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        # nothing but a hole up to the end; anything else is a file system that knows of no holes
        data = os.fstat(fd).st_size if error.errno == errno.ENXIO else at
    os.lseek(fd, ahead, os.SEEK_SET)
    if data > at:
        file.seek(data)


def _pieces(chunk: bytes | bytearray | memoryview) -> Iterable[memoryview]:
    view = memoryview(chunk)
    if view.nbytes == 0:  # an empty shape can't be cast
        return
    flat = view.cast("B")
    for start in range(0, flat.nbytes, _PIECE):
        yield flat[start : start + _PIECE]


def _write_all(fd: int, piece: memoryview) -> None:
    while piece.nbytes:
        piece = piece[os.write(fd, piece) :]


def require_regular(mode: int, path: str | Path) -> None:
    """NotRegular, with what it is, where a mode is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotRegular(f"{str(path)!r} is {kind}, not a regular file")


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _delete_at(parent: int, name: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise OSError(errno.ELOOP, f"folders nested deeper than {_MAX_DEPTH}, not deleted", name)
    try:
        os.unlink(name, dir_fd=parent)
        return
    except FileNotFoundError:
        return
    except IsADirectoryError:
        pass
    try:
        folder = open_folder(name, dir_fd=parent)
    except FileNotFoundError:
        return
    try:
        for entry in os.listdir(folder):
            _delete_at(folder, entry, depth + 1)
    finally:
        os.close(folder)
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _unique() -> str:
    return os.urandom(6).hex()


def _quietly(call: Callable[[T], None], what: T) -> None:
    try:
        call(what)
    except OSError:
        pass  # the failure that is already on its way says more
