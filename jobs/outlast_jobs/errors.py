"""Named failures of what lies on disk, one for each thing that a caller can do about it."""

from __future__ import annotations


class IntegrityError(ValueError):
    """Something on disk is not what it must be. Never train from it; use the one before."""


class Corrupt(IntegrityError):
    """The bytes are not those that were written. Set it aside with the reason and fall back."""


class Malformed(Corrupt):
    """A file of ours is too large, nested too deeply, or not the JSON it should be."""


class NotRegular(Corrupt):
    """A symbolic link, a folder, a pipe or a device stands where a regular file must be."""


class UnsafeName(Corrupt):
    """A name that could leave its folder. Nothing under that name is read or written."""


class Incomplete(IntegrityError):
    """A file is missing. Set the generation aside with the reason and fall back."""


class Foreign(IntegrityError):
    """It belongs to another run. Pass it over and leave it where it is."""


class UnknownSchema(IntegrityError):
    """Written in a format that this version doesn't read. Leave it; use a version that does."""


class Unreadable(OSError):
    """It could not be looked at, which says nothing about what it holds. Try again later."""


class Fenced(RuntimeError):
    """A newer attempt has claimed the run. Stop without saving: nothing of ours may be sealed now."""


class AlreadySealed(FileExistsError):
    """A generation of this name is sealed, and is never overwritten. Choose another name."""


class Cancelled(RuntimeError):
    """The caller's own ``stop`` ended a long read. There is no verdict."""
