"""lowkey: LLM inference whose key-value cache stays compressed.

>>> import lowkey
>>> model = lowkey.Model("model.gguf")
>>> session = lowkey.Session(model, "best-3", n_ctx=4096)
>>> print(session.generate("The capital of France is", max_tokens=16))

Model     weights and vocabulary; shared by sessions and threads
Recipe    how a cache stores its rows
Session   a sequence of tokens with its cache: sync, eval, logits, generate, chat, copy, save
Batch     several sessions in one pass over the weights
plan      memory before running
perplexity  recipes compared with a full cache on a text

docs/python.md of the project has more. lowkey.lm_eval is a model class for lm-eval.
"""

from lowkey._batch import Batch
from lowkey._generate import CHAT_SAMPLING, SamplingOptions, Stream, schema_to_grammar
from lowkey._measure import Comparison, Plan, perplexity, plan
from lowkey._model import Message, Model, ModelInfo
from lowkey._native import (
    EVAL_MAX,
    ArgumentError,
    CancelledError,
    FileError,
    FormatError,
    FullError,
    LowkeyError,
    OutOfMemoryError,
    Progress,
    Status,
    UnsupportedError,
    version,
)
from lowkey._recipe import AnyRecipe, Level, Preset, Recipe
from lowkey._session import LevelStats, Logits, Probe, Session, SessionStats, TokenLogprob

__version__ = version()

__all__ = [
    "CHAT_SAMPLING",
    "EVAL_MAX",
    "AnyRecipe",
    "ArgumentError",
    "Batch",
    "CancelledError",
    "Comparison",
    "FileError",
    "FormatError",
    "FullError",
    "Level",
    "LevelStats",
    "Logits",
    "LowkeyError",
    "Message",
    "Model",
    "ModelInfo",
    "OutOfMemoryError",
    "Plan",
    "Preset",
    "Probe",
    "Progress",
    "Recipe",
    "SamplingOptions",
    "Session",
    "SessionStats",
    "Status",
    "Stream",
    "TokenLogprob",
    "UnsupportedError",
    "perplexity",
    "plan",
    "schema_to_grammar",
    "version",
]
