"""Several sessions in one pass over the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from lowkey._generate import Stream
from lowkey._model import Model
from lowkey._native import Call, ffi, lib
from lowkey._session import Session


class Batch:
    """Evaluates sessions of a model together: the weights are read once for all of them.

    >>> batch = lowkey.Batch(model)
    >>> texts = batch.finish([session.stream(prompt) for session, prompt in zip(sessions, prompts)])
    """

    def __init__(self, model: Model) -> None:
        out, call = ffi.new("lk_batch **"), Call()
        call.check(lib.lk_batch_new(out, model.handle, call.err))
        handle = model.handle
        self._handle = ffi.gc(out[0], lambda batch, outlive=handle: lib.lk_batch_free(batch))

    def eval(self, sessions: Sequence[Session], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens[i] to sessions[i], as Session.eval does. Recipes and lengths may differ.

        If a session cannot be evaluated, the others are, and then its error is raised.
        """
        if len(sessions) != len(tokens):
            raise ValueError(f"{len(sessions)} sessions, but tokens of {len(tokens)}")
        arrays = [ffi.new("int32_t[]", some) for some in tokens]
        entries, call = ffi.new("lk_batch_entry[]", len(sessions)), Call()
        with contextlib.ExitStack() as used:
            for entry, session, array in zip(entries, sessions, arrays):
                entry.session, entry.tok, entry.n_tok = used.enter_context(session._use()), array, len(array)
                session._expect_rows(1)
            call.check(lib.lk_batch_eval(self._handle, entries, len(sessions), call.err))
            for entry, session in zip(entries, sessions):
                if entry.err.code == 0:
                    session._n_rows = 1
        for entry in entries:
            call.err[0] = entry.err
            call.check(entry.err.code)

    def finish(self, streams: Sequence[Stream]) -> list[str]:
        """The texts of streams (Session.stream) of different sessions, each generated to its end."""
        pieces: list[list[str]] = [[] for _ in streams]
        while running := [i for i, stream in enumerate(streams) if stream.finish_reason is None]:
            pending = [(stream._session, [token]) for stream in streams if (token := stream._pending) is not None]
            if pending:
                self.eval([session for session, _ in pending], [tokens for _, tokens in pending])
            for i in running:
                pieces[i].append(streams[i]._advance())
        return ["".join(some) for some in pieces]
