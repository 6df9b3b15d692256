"""A model: weights and vocabulary."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypedDict

from lowkey._native import Call, Progress, Reporter, ffi, lib, on_progress, text_of


class Message(TypedDict):
    """A message of a conversation: role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """Properties of a model; see lk_model_info in lowkey.h."""

    arch: str
    name: str
    kernels: str
    kernels_lack: str | None
    sidecar_method: str | None
    identity: int
    n_param: int
    file_bytes: int
    weight_bytes: int
    sidecar_bytes: int
    shared_bytes: int
    n_value: int
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    d_head: int
    d_rope: int
    n_vocab: int
    n_cached: int
    n_ctx_train: int
    n_swa: int
    n_threads: int
    device: str | None
    n_device_layers: int
    prompt_lack: str | None
    device_weight_bytes: int
    device_bytes: int
    bos: int
    eos: int
    eot: int


_TEXTS = ("arch", "name", "kernels")
_OPTIONAL_TEXTS = ("kernels_lack", "sidecar_method", "device", "prompt_lack")


class Model:
    """A GGUF model, opened for inference.

    path      the GGUF file
    threads   processors to compute with; None: the library's choice
    sidecar   file with data made offline for this model (`lowkey compress`, `lowkey train`)
    weights   "shipped": the file's types; "f32": dequantized at load, slow but without rounding
    mmap      map the file instead of reading it
    repack    repack weights for this processor: faster, more memory
    kernels   name of the attention kernels, for example "reference"; None: the fastest
    device    device that computes the last layers, for example "cuda0" or "rpc:HOST:PORT"; None: none
    layers    layers that the device computes; None: all
    cache_device  device that holds the caches of sessions, for example "cuda0"; None: RAM
    progress  called with (bytes done, bytes in all)

    A model is immutable: any number of sessions and threads may use it. It stays in memory until
    it and all its sessions are closed or collected.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: int | None = None,
        sidecar: str | os.PathLike[str] | None = None,
        *,
        weights: Literal["shipped", "f32"] = "shipped",
        mmap: bool = True,
        repack: bool = True,
        kernels: str | None = None,
        device: str | None = None,
        layers: int | None = None,
        cache_device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        if weights not in ("shipped", "f32"):
            raise ValueError(f"weights is {weights!r}; give 'shipped' or 'f32'")
        reporter = Reporter()
        reporter.function = progress
        names = [
            ffi.new("char[]", os.fsencode(name)) if name else ffi.NULL
            for name in (sidecar and os.path.expanduser(sidecar), kernels, device, cache_device)
        ]
        opts = ffi.new("lk_model_opts *")
        opts.n_threads = threads or 0
        opts.weights = lib.LK_WEIGHTS_F32 if weights == "f32" else lib.LK_WEIGHTS_AS_SHIPPED
        opts.no_mmap, opts.no_repack = not mmap, not repack
        opts.sidecar, opts.kernels, opts.device, opts.cache_device = names
        opts.n_device_layers = layers or 0
        opts.progress, opts.user = on_progress, reporter.user
        out, call = ffi.new("lk_model **"), Call(reporter)
        file = os.fsencode(os.path.expanduser(path))
        call.check(lib.lk_model_open(out, file, opts, call.err))
        self._handle: Any = ffi.gc(out[0], lib.lk_model_free)
        self._n_vocab = self.info.n_vocab

    @property
    def handle(self) -> Any:
        """The lk_model of cffi, for what this package has no method for."""
        if self._handle is None:
            raise ValueError("the model is closed")
        return self._handle

    def close(self) -> None:
        """Give the model back. It is freed when its last session is closed too."""
        self._handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<lowkey.Model, closed>"
        info = self.info
        return f"<lowkey.Model {info.name or info.arch!r}, {info.n_param / 1e6:.0f}M parameters>"

    # ---- properties ----

    @property
    def info(self) -> ModelInfo:
        """All properties."""
        info = lib.lk_model_get_info(self.handle)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(ModelInfo):
            value = getattr(info, field.name)
            if field.name in _TEXTS:
                value = text_of(value)
            elif field.name in _OPTIONAL_TEXTS:
                value = text_of(value) or None
            values[field.name] = value
        return ModelInfo(**values)

    @property
    def name(self) -> str:
        """The model's name for itself; "" if it has none."""
        return self.info.name

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._n_vocab

    @property
    def n_ctx_train(self) -> int:
        """Context length of the training, in tokens."""
        return self.info.n_ctx_train

    @property
    def bos(self) -> int | None:
        """The token that begins a text; None: there is none."""
        bos = self.info.bos
        return bos if bos >= 0 else None

    @property
    def eos(self) -> int | None:
        """The token that ends a text; None: there is none."""
        eos = self.info.eos
        return eos if eos >= 0 else None

    @property
    def chat_template(self) -> str | None:
        """The chat template (Jinja) of the file; None: there is none."""
        return text_of(lib.lk_model_chat_template(self.handle)) or None

    # ---- tokens ----

    def tokenize(self, text: str, *, begin: bool = True, control: bool = False) -> list[int]:
        """The tokens of a text.

        begin    add the tokens that the model expects around a text
        control  text that spells a control token, such as "<|im_start|>", becomes that token: only
                 for texts whose author may speak as any role
        """
        flags = lib.LK_TOKENIZE_BEGIN * begin | lib.LK_TOKENIZE_CONTROL * control
        return self._tokenize(text.encode("utf-8"), flags)

    def _tokenize(self, text: bytes, flags: int) -> list[int]:
        tok, n_tok, call = ffi.new("int32_t **"), ffi.new("size_t *"), Call()
        call.check(
            lib.lk_tokenize(self.handle, text, len(text), flags, 0, tok, n_tok, call.err)
        )
        try:
            return list(ffi.unpack(tok[0], n_tok[0])) if n_tok[0] else []
        finally:
            lib.lk_tokens_free(tok[0])

    def token_bytes(self, token: int) -> bytes:
        """The text of a token. It may be a part of a UTF-8 sequence."""
        if not 0 <= token < self._n_vocab:
            raise ValueError(f"token {token} is not one of the vocabulary's {self._n_vocab}")
        size = ffi.new("size_t *")
        text = lib.lk_token_text(self.handle, token, size)
        return bytes(ffi.unpack(text, size[0])) if size[0] else b""

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def ends_answer(self, token: int) -> bool:
        """Whether this token ends an answer: eos, eot and others of their kind."""
        return bool(lib.lk_token_ends(self.handle, token))

    def is_control(self, token: int) -> bool:
        """Whether this token structures a conversation instead of being text."""
        return bool(lib.lk_token_is_control(self.handle, token))

    # ---- conversations ----

    def chat_format(self, messages: Sequence[Message], *, reply: bool = True) -> str:
        """A conversation as text, by the model's chat template, for people to read.

        reply  open the assistant's turn at the end
        """
        marked = self._chat_format(messages, reply)
        return marked.replace(b"\xff", b"").replace(b"\xfe", b"").decode("utf-8", "replace")

    def chat_tokens(self, messages: Sequence[Message], *, reply: bool = True) -> list[int]:
        """The tokens of a conversation. Contents cannot contain control tokens; roles are trusted."""
        flags = lib.LK_TOKENIZE_BEGIN | lib.LK_TOKENIZE_MARKED
        return self._tokenize(self._chat_format(messages, reply), flags)

    def _chat_format(self, messages: Sequence[Message], reply: bool) -> bytes:
        """Marked text: control tokens of the template are between the bytes 0xFF and 0xFE."""
        if isinstance(messages, (str, bytes, Mapping)):
            raise TypeError(
                f"messages is one {type(messages).__name__}; give a list of messages, such as "
                "[{'role': 'user', 'content': 'Hello'}]"
            )
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise TypeError(f"message {i} is {message!r:.80}, not a dictionary")
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    raise ValueError(f"message {i} has no text as its {key!r}: {message!r:.80}")
        array = ffi.new("lk_message[]", len(messages))
        keep = []  # the strings, until the call is over
        for item, message in zip(array, messages):
            role = ffi.new("char[]", message["role"].encode("utf-8"))
            content = ffi.new("char[]", message["content"].encode("utf-8"))
            item.role, item.content = role, content
            keep += [role, content]
        text, call = ffi.new("char **"), Call()
        call.check(
            lib.lk_chat_format(self.handle, array, len(messages), reply, text, call.err)
        )
        try:
            return bytes(ffi.string(text[0]))
        finally:
            lib.lk_text_free(text[0])
