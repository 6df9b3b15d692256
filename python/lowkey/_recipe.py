"""A recipe: one line of text that says how a cache stores its rows."""

from __future__ import annotations

from typing import Any, NamedTuple, Union

from lowkey._native import Call, ffi, lib, text_of


class Preset(NamedTuple):
    """A recipe with a name."""

    name: str
    text: str
    note: str
    sidecar: str | None
    """Options of `lowkey compress` that make its sidecar; None: it needs none."""


class Level(NamedTuple):
    """A range of ages in a recipe, and how K and V are stored there."""

    name: str
    k_codec: str
    v_codec: str


class Recipe:
    """A recipe, or the name of a preset.

    >>> Recipe("best-3").evicts
    False
    """

    def __init__(self, text: str) -> None:
        out, call = ffi.new("lk_recipe **"), Call()
        call.check(lib.lk_recipe_parse(out, text.encode("utf-8"), call.err))
        self._handle: Any = ffi.gc(out[0], lib.lk_recipe_free)

    @property
    def handle(self) -> Any:
        """The lk_recipe of cffi."""
        return self._handle

    @property
    def text(self) -> str:
        """The text that was given."""
        return text_of(lib.lk_recipe_text(self._handle))

    @property
    def evicts(self) -> bool:
        """Whether rows are evicted. A session then cannot be cut back to a prefix."""
        return bool(lib.lk_recipe_evicts(self._handle))

    @property
    def levels(self) -> list[Level]:
        """The levels from oldest to newest, then one entry for each override of layers."""
        levels: list[Level] = []
        level = ffi.new("lk_recipe_level *")
        while lib.lk_recipe_get_level(self._handle, len(levels), level):
            levels.append(
                Level(text_of(level.name), text_of(level.k_codec), text_of(level.v_codec))
            )
        return levels

    @staticmethod
    def presets() -> list[Preset]:
        """All presets."""
        presets: list[Preset] = []
        preset = ffi.new("lk_preset *")
        while lib.lk_recipe_preset(len(presets), preset):
            presets.append(
                Preset(
                    text_of(preset.name),
                    text_of(preset.text),
                    text_of(preset.note),
                    text_of(preset.compress) or None,
                )
            )
        return presets

    def __repr__(self) -> str:
        return f"Recipe({self.text!r})"


AnyRecipe = Union[Recipe, str]


def as_recipe(recipe: AnyRecipe) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else Recipe(recipe)
