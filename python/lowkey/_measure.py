"""Memory before running, and what a cache costs in quality."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from lowkey._model import Model
from lowkey._native import Call, Progress, Reporter, ffi, lib, on_progress
from lowkey._recipe import AnyRecipe, Recipe, as_recipe


@dataclasses.dataclass(frozen=True)
class Plan:
    """Memory that a session will need when it holds n_tok tokens; see lk_plan in lowkey.h."""

    recipe: str
    n_tok: int
    cache_bytes: int
    f16_bytes: int
    weight_bytes: int
    scratch_bytes: int
    peak_bytes: int
    bits_per_value: float
    sidecar_bytes: int
    derived_bytes: int
    device_bytes: int
    device_cache_bytes: int
    device_scratch_bytes: int
    device_shared_bytes: int


def plan(
    model: Model,
    recipes: AnyRecipe | Iterable[AnyRecipe],
    contexts: int | Iterable[int],
    *,
    chunked_prefill: bool = False,
) -> list[Plan]:
    """Plan every recipe with every context length, computed with the cache's own arithmetic."""
    plans = []
    for recipe in _recipes(recipes):
        for n_ctx in [contexts] if isinstance(contexts, int) else contexts:
            opts, out, call = ffi.new("lk_session_opts *"), ffi.new("lk_plan *"), Call()
            opts.n_ctx, opts.chunked_prefill = n_ctx, chunked_prefill
            call.check(lib.lk_plan_make(model.handle, recipe.handle, opts, out, call.err))
            names = [field.name for field in dataclasses.fields(Plan)][1:]
            plans.append(Plan(recipe.text, **{name: getattr(out, name) for name in names}))
    return plans


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How a recipe predicts a text, compared with a full cache; see lk_compare_result.

    ppl is the perplexity; kl_* the KL divergence from the full cache in nats, its mean, standard
    error and percentiles; *_stderr is over predictions, *_chunk_stderr between chunks (0: there is
    one); top1 the share of positions with the same most probable token.
    """

    recipe: str
    ppl: float
    ppl_stderr: float
    ppl_chunk_stderr: float
    kl_mean: float
    kl_stderr: float
    kl_chunk_stderr: float
    kl_median: float
    kl_p99: float
    kl_p999: float
    top1: float
    bytes_per_token: float
    bits_per_value: float
    tokens_per_second: float
    n_scored: int
    bits_with_sidecar: float


def perplexity(
    model: Model,
    text: str | Sequence[int],
    recipes: AnyRecipe | Iterable[AnyRecipe],
    *,
    n_ctx: int = 2048,
    chunks: int | None = None,
    score: int | None = None,
    prompt: bool = False,
    step: int = 32,
    progress: Progress | None = None,
) -> list[Comparison]:
    """Compare recipes with a full cache on a text, like `lowkey perplexity`.

    text    a text, or its tokens
    n_ctx   tokens of a chunk
    chunks  number of chunks; None: as many as the text has
    score   predictions that are scored, at the end of a chunk; None: those of its second half
    prompt  what precedes them is a prompt, computed once for all recipes
    step    tokens per evaluation, 1 to EVAL_MAX; 1 is how a decoder runs
    """
    if isinstance(text, str):
        text = model.tokenize("") + model.tokenize(text, begin=False)
    which, reporter = _recipes(recipes), Reporter()
    reporter.function = progress
    opts = ffi.new("lk_compare_opts *")
    opts.n_ctx, opts.n_chunk, opts.n_step = n_ctx, chunks or 0, step
    opts.n_scored, opts.prompt = score or 0, prompt
    opts.progress, opts.user = on_progress, reporter.user
    handles = ffi.new("lk_recipe *[]", [recipe.handle for recipe in which])
    results = ffi.new("lk_compare_result[]", len(which))
    tokens, call = ffi.new("int32_t[]", text), Call(reporter)
    call.check(
        lib.lk_compare(
            model.handle, handles, len(which), tokens, len(text), opts, results, call.err
        )
    )
    names = [field.name for field in dataclasses.fields(Comparison)][1:]
    return [
        Comparison(recipe.text, **{name: getattr(result, name) for name in names})
        for recipe, result in zip(which, results)
    ]


def _recipes(recipes: AnyRecipe | Iterable[AnyRecipe]) -> list[Recipe]:
    if isinstance(recipes, (str, Recipe)):
        recipes = [recipes]
    return [as_recipe(recipe) for recipe in recipes]
