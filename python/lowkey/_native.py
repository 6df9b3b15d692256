"""The shared library, its errors as exceptions, and its progress callbacks."""

from __future__ import annotations

import enum
import os
import pathlib
from typing import Any, Callable, Optional

from lowkey import _level

try:
    import lowkey._api as _api
except ModuleNotFoundError as error:
    if error.name != "lowkey._api":
        raise
    raise ImportError(
        "lowkey is not built: lowkey/_api.py is missing. Run 'pip install -e .' in the checkout; "
        "python/generate_api.py writes that file"
    ) from None

ffi: Any = _api.ffi

Progress = Callable[[int, int], Optional[bool]]
"""Called with (done, total). Returning False cancels; raising does too, and the exception goes on."""


def _library_path() -> str:
    # _api.py and the library are installed in the same folder, also by an editable install.
    return (
        os.environ.get("LOWKEY_LIBRARY")
        or _level.library_path()
        or str(pathlib.Path(_api.__file__).with_name("liblowkey.so"))
    )


lib: Any = ffi.dlopen(_library_path())
lib.lk_baselines_register(ffi.NULL)  # recipes may name the codecs that the papers are compared with

EVAL_MAX: int = lib.LK_EVAL_MAX


class Status(enum.IntEnum):
    """What kind of error it was: lk_status of lowkey.h."""

    ARGUMENT = -1
    NO_MEMORY = -2
    IO = -3
    FORMAT = -4
    UNSUPPORTED = -5
    FULL = -6
    CANCELLED = -7


class LowkeyError(Exception):
    """An error of the library. Its text is one line: what is wrong, then what to do."""

    status: Status


class ArgumentError(LowkeyError, ValueError):
    """An argument is out of range."""

    status = Status.ARGUMENT


class OutOfMemoryError(LowkeyError, MemoryError):
    """Out of memory, or a limit such as max_bytes is reached."""

    status = Status.NO_MEMORY


class FileError(LowkeyError, OSError):
    """A file could not be read or written."""

    status = Status.IO


class FormatError(LowkeyError, ValueError):
    """A file or a text is damaged or malformed."""

    status = Status.FORMAT


class UnsupportedError(LowkeyError, NotImplementedError):
    """Valid, but not supported by this build."""

    status = Status.UNSUPPORTED


class FullError(LowkeyError):
    """The context length, or a maximum number of tokens, is reached."""

    status = Status.FULL


class CancelledError(LowkeyError):
    """Ended by Session.cancel or by a progress function."""

    status = Status.CANCELLED


_ERRORS: dict[int, type[LowkeyError]] = {
    error.status: error
    for error in (
        ArgumentError,
        OutOfMemoryError,
        FileError,
        FormatError,
        UnsupportedError,
        FullError,
        CancelledError,
    )
}


def text_of(pointer: Any) -> str:
    """A C string as str; "" for NULL."""
    return ffi.string(pointer).decode("utf-8", "replace") if pointer else ""


class Call:
    """The error of one call: `with`out it, a status is only a number.

    call = Call(); call.check(lib.lk_something(..., call.err))
    """

    def __init__(self, reporter: Reporter | None = None) -> None:
        self.err = ffi.new("lk_err *")
        self._reporter = reporter

    def check(self, status: int) -> None:
        """Raise the exception of a status that is not LK_OK."""
        raised = self._reporter.take_error() if self._reporter else None
        if raised is not None:
            raise raised
        if status != 0:
            message = text_of(self.err.msg) or text_of(lib.lk_status_name(status))
            raise _ERRORS.get(status, LowkeyError)(message)


class Reporter:
    """Passes an operation's progress to a Python function.

    C calls it often enough that Python handles Ctrl-C meanwhile.
    """

    def __init__(self) -> None:
        self.function: Progress | None = None
        self.user = ffi.new_handle(self)  # for lk_progress; lives as long as this object
        self._error: BaseException | None = None

    def report(self, done: int, total: int) -> bool:
        return self.function is None or self.function(done, total) is not False

    def fail(self, error: BaseException) -> None:
        self._error = error

    def take_error(self) -> BaseException | None:
        """The exception that a progress function, or Ctrl-C, has raised; only once."""
        error, self._error = self._error, None
        return error


def _on_error(kind: Any, error: BaseException, traceback: Any) -> None:
    # cffi calls this if on_progress raises, also before its first line, as Ctrl-C does.
    ffi.from_handle(traceback.tb_frame.f_locals["user"]).fail(error)


@ffi.callback("bool(void *, uint64_t, uint64_t)", error=False, onerror=_on_error)  # type: ignore[untyped-decorator]
def on_progress(user: Any, done: int, total: int) -> bool:
    """The lk_progress of every operation; `user` is Reporter.user."""
    return bool(ffi.from_handle(user).report(done, total))


def version() -> str:
    """Version of the library, for example "0.1.0"."""
    return text_of(lib.lk_version())
