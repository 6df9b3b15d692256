"""Choosing tokens, and the text they make."""

from __future__ import annotations

import codecs
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from lowkey._native import Call, ffi, lib, text_of

if TYPE_CHECKING:
    from lowkey._model import Model
    from lowkey._session import Session


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen. Without options: always the most probable one."""

    temperature: float
    """0: the most probable token."""
    top_k: int
    """0: off."""
    top_p: float
    """0 or 1: off."""
    min_p: float
    """0: off."""
    repeat_penalty: float
    """Divides the logits of repeated tokens; 0 or 1: off."""
    frequency_penalty: float
    """Subtracted for each repetition."""
    presence_penalty: float
    """Subtracted once."""
    repeat_last_n: int
    """Number of last tokens that count as repeated; 0: 64; -1: none."""
    seed: int | None
    """None: a random one."""
    grammar: str | None
    """GBNF that the answer has to follow."""
    json_schema: Mapping[str, Any] | str | None
    """JSON schema that the answer has to match; instead of grammar."""
    logit_bias: Mapping[int, float]
    """Added to the logits of tokens; -inf: never."""
    ignore_eos: bool
    """Never choose a token that ends an answer."""


CHAT_SAMPLING: SamplingOptions = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
}
"""Options for conversation, like those of llama.cpp and `lowkey chat`."""

_NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "repeat_last_n",
    "ignore_eos",
)


def schema_to_grammar(schema: Mapping[str, Any] | str) -> str:
    """A GBNF grammar that accepts only JSON texts that match a JSON schema."""
    text = (schema if isinstance(schema, str) else json.dumps(schema)).encode("utf-8")
    out, call = ffi.new("char **"), Call()
    call.check(lib.lk_schema_to_grammar(text, len(text), out, call.err))
    try:
        return text_of(out[0])
    finally:
        lib.lk_text_free(out[0])


def new_sampler(model: Model, options: SamplingOptions) -> Any:
    """The lk_sampler of these options."""
    known = SamplingOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name!r}; options are {', '.join(known)}")
    for name, most in (("temperature", math.inf), ("top_p", 1), ("min_p", 1), ("top_k", math.inf)):
        value = options.get(name, 0)
        if not 0 <= value <= most:  # type: ignore[operator]
            limit = "0 or more" if most == math.inf else f"0 to {most}"
            raise ValueError(f"{name} is {value}; give {limit}")
    opts = ffi.new("lk_sampler_opts *")
    for name in _NUMBERS:
        if name in options:
            setattr(opts, name, options[name])  # type: ignore[literal-required]
    seed = options.get("seed")
    opts.seed = secrets.randbits(32) if seed is None else seed
    grammar, schema = options.get("grammar"), options.get("json_schema")
    if schema is not None:
        if grammar is not None:
            raise TypeError("give grammar or json_schema, not both")
        grammar = schema_to_grammar(schema)
    if grammar is not None:
        grammar_text = ffi.new("char[]", grammar.encode("utf-8"))
        opts.grammar = grammar_text
    bias = options.get("logit_bias") or {}
    items = ffi.new("lk_logit_bias[]", [(token, value) for token, value in bias.items()])
    opts.bias, opts.n_bias = items, len(bias)
    out, call = ffi.new("lk_sampler **"), Call()
    call.check(lib.lk_sampler_new(out, model.handle, opts, call.err))
    handle = model.handle
    return ffi.gc(out[0], lambda sampler, outlive=handle: lib.lk_sampler_free(sampler))


class Stream(Iterator[str]):
    """Iterates over pieces of a text while they are generated.

    tokens         the tokens so far, without the one that ends the answer
    finish_reason  "stop": the answer ended; "length": max_tokens or the context length was
                   reached; None: not finished
    """

    def __init__(
        self, session: Session, sampler: Any, max_tokens: int | None, stop: Sequence[str]
    ) -> None:
        self.tokens: list[int] = []
        self.finish_reason: Literal["stop", "length"] | None = None
        self._session = session
        self._sampler = sampler
        room = session.n_ctx - session.n_tokens + 1  # the last token is not evaluated
        self._max_tokens = room if max_tokens is None else min(room, max_tokens)
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # may be the beginning of a stop text
        self._pending: int | None = None  # a token that has to be evaluated before the next choice

    def __next__(self) -> str:
        while self.finish_reason is None:
            if self._pending is not None:
                self._session.eval([self._pending])
            if piece := self._advance():
                return piece
        raise StopIteration

    def _choose(self) -> int:
        token, call = ffi.new("int32_t *"), Call()
        with self._session._use() as session:
            call.check(lib.lk_sampler_next(self._sampler, session, -1, token, call.err))
        return int(token[0])

    def _advance(self) -> str:
        """Choose the next token. Returns the text that is sure by then."""
        model = self._session.model
        if len(self.tokens) >= self._max_tokens:
            return self._finish("length")
        token = self._choose()
        if model.ends_answer(token):
            return self._finish("stop")
        self.tokens.append(token)
        self._pending = token
        text = self._held + self._decoder.decode(model.token_bytes(token))
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.finish_reason, self._pending = "stop", None
            return text[: min(ends)]
        n_sure = len(text) - self._n_held(text)
        self._held = text[n_sure:]
        return text[:n_sure] + (self._finish("length") if len(self.tokens) >= self._max_tokens else "")

    def _finish(self, reason: Literal["stop", "length"]) -> str:
        """The text that was held back."""
        self.finish_reason, self._pending = reason, None
        return self._held + self._decoder.decode(b"", final=True)

    def _n_held(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop text."""
        longest = max(map(len, self._stop), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stop):
                return n
        return 0
