"""The methods' knobs as fields of a configuration class, and in its documentation."""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TypeVar

from .method import Knob, Method, type_name

C = TypeVar("C", bound=type)
_INDENT, _WIDTH = 12 * " ", 107


def add_method_fields(after: Mapping[str, Iterable[Method]]) -> Callable[[C], C]:
    """Return a class decorator that adds a field METHOD_KNOB for each knob, to be applied before `dataclass`.

    In the class docstring, {FIELD list} becomes a list of the methods with their papers, and {FIELD knobs} a
    description of their knobs.

    Args:
        after: By the name of a field of the class, the methods whose knobs follow it. The order of the fields is that
            of `trl-miner train --help`.

    Returns:
        The decorator.
    """

    def decorate(cls: C) -> C:
        annotations = {}
        for own, annotation in cls.__annotations__.items():
            annotations[own] = annotation
            for name, knob in _by_setting(after.get(own, ())).items():
                annotations[name] = knob.type
                setattr(cls, name, field(default=knob.default, metadata={"help": knob.help}))
        cls.__annotations__ = annotations
        doc = cls.__doc__ or ""
        for own, methods in after.items():
            doc = doc.replace(f"{{{own} list}}", _list(methods)).replace(f"{{{own} knobs}}", _describe(methods))
        cls.__doc__ = doc or None  # python -OO has none
        return cls

    return decorate


def _by_setting(methods: Iterable[Method]) -> dict[str, Knob]:
    return {f"{method.name}_{name}": knob for method in methods for name, knob in method.knobs.items()}


def _list(methods: Iterable[Method]) -> str:
    text = ", ".join(f'`"{method.name}"` (https://huggingface.co/papers/{method.arxiv})' for method in methods)
    return f"\n{_INDENT}".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))


def _describe(methods: Iterable[Method]) -> str:
    lines = []
    for name, knob in _by_setting(methods).items():
        default = f'"{knob.default}"' if isinstance(knob.default, str) else knob.default
        lines.append(f"{name} (`{type_name(knob.type)}`, *optional*, defaults to `{default}`):")
        text = textwrap.wrap(f"{knob.help} {knob.details}".strip(), _WIDTH, break_on_hyphens=False)
        lines.extend(f"    {line}" for line in text)
    return f"\n{_INDENT[4:]}".join(lines)
