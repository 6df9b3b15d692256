"""A session: one sequence of tokens with its compressed cache."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import numpy.typing

from lowkey._generate import SamplingOptions, Stream, new_sampler
from lowkey._model import Message, Model
from lowkey._native import EVAL_MAX, Call, Progress, Reporter, ffi, lib, on_progress, text_of
from lowkey._recipe import AnyRecipe, as_recipe

if TYPE_CHECKING:
    from typing_extensions import Unpack

Logits = numpy.typing.NDArray[numpy.float32]


@dataclasses.dataclass(frozen=True)
class SessionStats:
    """Memory of a session, counted by its allocator; see lk_session_stats in lowkey.h."""

    n_tok: int
    code_bytes: int
    scale_bytes: int
    exact_bytes: int
    padding_bytes: int
    state_bytes: int
    cache_bytes: int
    checkpoint_bytes: int
    shared_bytes: int
    f16_bytes: int
    scratch_bytes: int
    bits_per_value: float
    bytes_per_token: float
    sidecar_bytes: int
    bits_with_sidecar: float


class LevelStats(NamedTuple):
    """What one level of a cache holds; see lk_level_stats in lowkey.h."""

    name: str
    k_codec: str
    v_codec: str
    k_rows: int
    v_rows: int
    k_bytes: int
    v_bytes: int


class TokenLogprob(NamedTuple):
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


class Probe:
    """How the last token of the last evaluation spreads its attention; see Session.probe."""

    def __init__(self, session: Session, handle: Any) -> None:
        self._session, self._handle = session, handle

    def __getitem__(self, layer: int) -> Logits:
        """Attention [n_head][n_tokens] of a layer: 0 for rows that were evicted."""
        if self._handle is None:
            raise ValueError("the probe is closed")
        n_tokens = self._session.n_tokens
        weights = numpy.zeros((self._session.model.info.n_head, n_tokens), numpy.float32)
        n, call = ffi.new("size_t *"), Call()
        with self._session._use():
            for head, row in enumerate(weights):
                into = ffi.cast("float *", row.ctypes.data)
                call.check(
                    lib.lk_probe_read(self._handle, layer, head, into, n_tokens, n, call.err)
                )
        return weights


class _LogitsMemory:
    """Rows of logits as numpy sees them. Arrays made from it keep the session's memory."""

    def __init__(self, owner: Any, pointer: Any, shape: tuple[int, ...]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<f4",
            "shape": shape,
            "data": (int(ffi.cast("uintptr_t", pointer)), True),  # read-only
        }


class Session:
    """One sequence of tokens: its cache, scratch memory and last logits.

    model            the model; several sessions may share one
    recipe           how the cache stores its rows: a Recipe, its text, or a preset's name
    n_ctx            maximum number of tokens; None: the context length of the training
    chunked_prefill  prefill through the compressed cache: less memory for very long prompts
    max_bytes        limit for cache and scratch memory together; None: none
    checkpoints      earlier states that are kept, at most, so that a question asked again or an
                     edited turn is not prefilled from the start; 0: none

    One thread at a time may use a session; a second one gets a RuntimeError. Only cancel may be
    called by any thread. The computing runs without the GIL, so other Python threads go on.
    """

    def __init__(
        self,
        model: Model,
        recipe: AnyRecipe = "best-4",
        *,
        n_ctx: int | None = None,
        chunked_prefill: bool = False,
        max_bytes: int | None = None,
        checkpoints: int = 64,
    ) -> None:
        self.model = model
        self.recipe = as_recipe(recipe)
        self.n_ctx = n_ctx or model.n_ctx_train
        self._options = {
            "chunked_prefill": chunked_prefill,
            "max_bytes": max_bytes,
            "checkpoints": checkpoints,
        }
        self._reporter = Reporter()
        self._used = threading.Lock()
        self._n_rows = 0  # of logits
        self._max_rows = 0  # that the library's buffer holds
        self._views: weakref.WeakSet[_LogitsMemory] = weakref.WeakSet()
        opts = ffi.new("lk_session_opts *")
        opts.n_ctx = self.n_ctx
        opts.chunked_prefill = chunked_prefill
        opts.max_bytes = max_bytes or 0
        opts.n_checkpoint = checkpoints
        opts.progress, opts.user = on_progress, self._reporter.user
        out, call = ffi.new("lk_session **"), Call()
        call.check(
            lib.lk_session_new(out, model.handle, self.recipe.handle, opts, call.err)
        )
        # The function that frees a session holds what has to outlive it.
        outlive = (model.handle, self.recipe.handle, self._reporter)
        self._handle: Any = ffi.gc(
            out[0], lambda session, outlive=outlive: lib.lk_session_free(session)
        )

    @property
    def handle(self) -> Any:
        """The lk_session of cffi, for what this package has no method for."""
        if self._handle is None:
            raise ValueError("the session is closed")
        return self._handle

    @contextlib.contextmanager
    def _use(self) -> Iterator[Any]:
        """The handle, for one thread."""
        if not self._used.acquire(blocking=False):
            raise RuntimeError("another thread is using this session")
        try:
            yield self.handle
        finally:
            self._used.release()

    def close(self) -> None:
        """Free the session, or let the last array of its logits free it."""
        with self._used:
            self._handle = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n_tokens

    def __repr__(self) -> str:
        if self._handle is None:
            return "<lowkey.Session, closed>"
        return f"<lowkey.Session {self.recipe.text!r}, {self.n_tokens} of {self.n_ctx} tokens>"

    # ---- evaluating ----

    def sync(self, tokens: Sequence[int], progress: Progress | None = None) -> int:
        """Make the session hold exactly these tokens, with the logits of the last one.

        Tokens of the common prefix are kept if the cache can be cut back to it. Returns their
        number. `progress` is called with (done, total) in tokens x layers.
        """
        array, n_reused = ffi.new("int32_t[]", tokens), ffi.new("size_t *")
        with self._use() as session:
            call = Call(self._reporter)
            self._reporter.function = progress
            self._expect_rows(1)
            try:
                call.check(
                    lib.lk_session_sync(session, array, len(tokens), n_reused, call.err)
                )
                self._n_rows = 1
            finally:
                self._reporter.function = None
        return int(n_reused[0])

    def reusable(self, tokens: Sequence[int]) -> int:
        """The number of these tokens that sync would keep."""
        with self._use() as session:
            return int(
                lib.lk_session_reusable(session, ffi.new("int32_t[]", tokens), len(tokens))
            )

    def eval(self, tokens: Sequence[int], all: bool = False) -> None:
        """Append tokens. `all`: keep the logits of every token; at most EVAL_MAX (512) tokens then.

        Longer sequences without `all` are evaluated in parts of EVAL_MAX.
        """
        if all and len(tokens) > EVAL_MAX:
            raise ValueError(f"{len(tokens)} tokens with all=True; give at most {EVAL_MAX}")
        with self._use() as session:
            for at in range(0, len(tokens), EVAL_MAX) or (0,):
                part = tokens[at : at + EVAL_MAX]
                array, call = ffi.new("int32_t[]", part), Call()
                self._expect_rows(len(part) if all else 1)
                call.check(lib.lk_session_eval(session, array, len(part), all, call.err))
                self._n_rows = len(part) if all else 1

    def cancel(self) -> None:
        """Cancel the evaluation that is running or, if none is, the next one. For any thread."""
        lib.lk_session_cancel(self.handle)

    def clear(self) -> None:
        """Drop all tokens and a cancellation that has not taken effect."""
        with self._use() as session:
            lib.lk_session_clear(session)
            self._n_rows = 0

    # ---- logits ----

    def _expect_rows(self, n: int) -> None:
        """Before a call that holds n rows of logits: the library may move them to more memory."""
        if n > self._max_rows:
            if len(self._views):
                raise BufferError(
                    "arrays of this session's logits are still in use, and the logits have to "
                    "move to more memory; delete the arrays, or copy them first"
                )
            self._max_rows = n

    def _view(self, first: int, shape: tuple[int, ...]) -> Logits:
        with self._use() as session:
            pointer = lib.lk_session_logits(session, first)
            if not pointer:
                raise ValueError("the session has no logits; evaluate a token first")
            memory = _LogitsMemory(session, pointer, shape)
            self._views.add(memory)
            return numpy.asarray(memory)

    @property
    def logits(self) -> Logits:
        """Logits [n_vocab] after the last token: a read-only view of the library's memory.

        It keeps this memory, and shows the logits of the last evaluation: after the next call that
        evaluates, it shows new ones. Copy it to keep them.
        """
        return self._view(-1, (self.model.n_vocab,))

    @property
    def all_logits(self) -> Logits:
        """Logits [n_tokens of the last evaluation][n_vocab]; one row without all=True."""
        return self._view(0, (self._n_rows, self.model.n_vocab))

    def logprob(self, token: int, index: int = -1) -> float:
        """Log-probability of a token after the index-th one of the last evaluation."""
        out, call = ffi.new("float *"), Call()
        with self._use() as session:
            call.check(
                lib.lk_session_logprobs(session, index, token, out, ffi.NULL, 0, call.err)
            )
        return float(out[0])

    def top(self, n: int, index: int = -1) -> list[TokenLogprob]:
        """The n most probable next tokens, most probable first."""
        array, call = ffi.new("lk_token_logprob[]", n), Call()
        with self._use() as session:
            call.check(
                lib.lk_session_logprobs(session, index, 0, ffi.NULL, array, n, call.err)
            )
        return [TokenLogprob(item.tok, item.logprob) for item in array]

    # ---- what it holds ----

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the session."""
        with self._use() as session:
            return int(lib.lk_session_n_tok(session))

    @property
    def tokens(self) -> list[int]:
        """The tokens in the session."""
        with self._use() as session:
            n = lib.lk_session_n_tok(session)
            return list(ffi.unpack(lib.lk_session_tokens(session), n)) if n else []

    @property
    def stats(self) -> SessionStats:
        """Memory of the cache and its parts, in bytes and bits per value."""
        with self._use() as session:
            stats = lib.lk_session_get_stats(session)
        names = [field.name for field in dataclasses.fields(SessionStats)]
        return SessionStats(**{name: getattr(stats, name) for name in names})

    @property
    def levels(self) -> list[LevelStats]:
        """The levels of the cache, from oldest to newest."""
        levels: list[LevelStats] = []
        level = ffi.new("lk_level_stats *")
        with self._use() as session:
            while lib.lk_session_get_level(session, len(levels), level):
                names = (text_of(level.name), text_of(level.k_codec), text_of(level.v_codec))
                levels.append(
                    LevelStats(*names, level.k_rows, level.v_rows, level.k_bytes, level.v_bytes)
                )
        return levels

    def rows(
        self, layer: int, head: int = 0, side: str = "k"
    ) -> tuple[numpy.typing.NDArray[numpy.int32], Logits]:
        """The rows that a KV head of a layer holds: positions [n], and K or V [n][channels].

        The rows are decoded, latents are reconstructed, and K is rotated (RoPE): what attention
        sees. Positions have gaps if a policy evicted rows. Layers are those with a cache.
        """
        sides = {"k": 0, "v": 1}
        if side not in sides:
            raise ValueError(f"side={side!r}; give 'k' or 'v'")
        n, d, call = ffi.new("size_t *"), ffi.new("size_t *"), Call()
        with self._use() as session:
            place = (session, layer, head, sides[side], 0)
            read = lib.lk_session_read_rows
            call.check(read(*place, 0, ffi.NULL, ffi.NULL, n, d, call.err))
            positions = numpy.empty(n[0], numpy.int32)
            rows = numpy.empty((n[0], d[0]), numpy.float32)
            into = (
                ffi.cast("int32_t *", positions.ctypes.data),
                ffi.cast("float *", rows.ctypes.data),
            )
            call.check(read(*place, len(positions), *into, n, d, call.err))
        return positions, rows

    @contextlib.contextmanager
    def probe(self) -> Iterator[Probe]:
        """Record attention: `with session.probe() as probe: session.eval(...); probe[layer]`.

        Evaluations are slower meanwhile. A session has one probe at a time.
        """
        out, call = ffi.new("lk_probe **"), Call()
        with self._use() as session:
            call.check(lib.lk_probe_new(out, session, call.err))
        probe = Probe(self, out[0])
        try:
            yield probe
        finally:
            probe._handle = None
            with self._use():
                lib.lk_probe_free(out[0])

    # ---- copies ----

    def copy(self) -> Session:
        """A new session that holds the same tokens and logits, without evaluating anything.

        Both share their cache blocks until one of them changes a block.
        """
        other = Session(self.model, self.recipe, n_ctx=self.n_ctx, **self._options)  # type: ignore[arg-type]
        other.copy_from(self)
        return other

    def copy_from(self, source: Session) -> None:
        """Hold what `source` holds. Models and recipes must be the same."""
        if source is self:
            return
        call = Call()
        with self._use() as session, source._use() as other:
            self._expect_rows(1)
            self._n_rows = 0
            call.check(lib.lk_session_copy(session, other, call.err))
            self._n_rows = 1 if source._n_rows else 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the session; the file replaces an existing one when it is complete."""
        call = Call()
        with self._use() as session:
            call.check(lib.lk_session_save(session, ffi.NULL, os.fsencode(path), call.err))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Hold what was saved with the same model and recipe. It continues bit for bit."""
        call = Call()
        with self._use() as session:
            self._expect_rows(1)
            call.check(lib.lk_session_load(session, ffi.NULL, os.fsencode(path), call.err))
            self._n_rows = 1 if lib.lk_session_logits(session, -1) else 0

    # ---- generating ----

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """Prefill a prompt, and return an iterator over pieces of the text that follows it.

        prompt      a text, or tokens, for example of Model.chat_tokens
        max_tokens  None: until the answer ends or the context is full
        stop        texts that end the answer and do not belong to it
        progress    of the prefill
        sampling    see SamplingOptions; the default is the most probable token

        The session keeps what it holds of the prompt, and the answer is appended to it.
        """
        if not isinstance(prompt, (str, Sequence)):
            raise TypeError(f"prompt is {prompt!r:.80}; give a text, or a list of tokens")
        stops = [stop] if isinstance(stop, str) else [text for text in stop if text]
        tokens = self.model.tokenize(prompt) if isinstance(prompt, str) else prompt
        sampler = new_sampler(self.model, sampling)
        self.sync(tokens, progress)
        return Stream(self, sampler, max_tokens, stops)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> str:
        """The text that follows a prompt: all pieces of stream."""
        return "".join(
            self.stream(
                prompt, max_tokens=max_tokens, stop=stop, progress=progress, **sampling
            )
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Progress | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> str:
        """The assistant's answer to a conversation, by the model's chat template.

        Pass the whole conversation each time: what the cache still holds of it is not evaluated
        again.
        """
        tokens = self.model.chat_tokens(messages)
        return self.generate(
            tokens, max_tokens=max_tokens, stop=stop, progress=progress, **sampling
        )
