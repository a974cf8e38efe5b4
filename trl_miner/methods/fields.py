"""Fields with limits; the methods' knobs as fields of a configuration class, and all fields in its documentation."""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any, TypeVar

from .method import Knob, Method

C = TypeVar("C", bound=type)


class _Metadata(dict[str, Any]):
    """Help and limits of a field. transformers' parser gives a copy to argparse, which knows no limits."""

    def copy(self) -> dict[str, Any]:
        return {"help": self["help"]}


def setting(default: Any, help: str, **limits: Any) -> Any:
    """Return a field with a default, its help, and limits as `Knob` has them, for `check_limits`."""
    return field(default=default, metadata=_Metadata(help=help, limits=Knob(default=default, **limits)))


def check_limits(args: Any) -> None:
    """Raise ValueError for a field of `setting` that is out of its limits."""
    for one in fields(args):
        limits, value = one.metadata.get("limits"), getattr(args, one.name)
        if limits is not None and not (value is None and one.default is None):
            replace(limits, name=one.name).check(value, {})


def add_method_fields(after: Mapping[str, Iterable[Method]]) -> Callable[[C], C]:
    """Return a class decorator that adds a field METHOD_KNOB for each knob, to be applied before `dataclass`.

    The class docstring gains a paragraph per field, made of its type, default and help.

    Args:
        after: By the name of a field of the class, the methods whose knobs follow it.
    """

    def decorate(cls: C) -> C:
        annotations = {}
        for name, annotation in cls.__annotations__.items():
            annotations[name] = annotation
            for method in after.get(name, ()):
                for knob in () if method.settings_of else method.knobs.values():
                    annotations[method.setting(knob.name)] = knob.type
                    added = field(default=knob.default, metadata={"help": knob.help})
                    setattr(cls, method.setting(knob.name), added)
        cls.__annotations__ = annotations
        lines = []
        for name, annotation in annotations.items():
            own = vars(cls)[name]
            default = "" if own.default is None else f", defaults to `{own.default!r}`"
            text = textwrap.wrap(own.metadata["help"], 107, break_long_words=False, break_on_hyphens=False)
            shown = annotation.__name__ if isinstance(annotation, type) else annotation
            lines += [f"{name} (`{shown}`, *optional*{default}):", *(f"    {line}" for line in text)]
        if cls.__doc__:  # python -OO has none
            cls.__doc__ = f"{cls.__doc__.rstrip()}\n{textwrap.indent(chr(10).join(lines), ' ' * 8)}\n    "
        return cls

    return decorate


def list_methods(methods: Iterable[Method]) -> str:
    """Return the names of methods, each with its paper, if it has one."""
    return ", ".join(f"{method.name} (arXiv {method.arxiv})" if method.arxiv else method.name for method in methods)
