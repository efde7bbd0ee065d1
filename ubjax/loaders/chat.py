"""Chat templates: messages to the text a model was tuned on, by the file's own jinja template.

The template is part of an untrusted file. It runs in jinja's immutable sandbox, with the filters and methods
that chat templates need and no others (no padding or formatting that could ask for gigabytes), products of
numbers only, limits on what it may make and print, and a limit on its time.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ubjax.loaders.extras import import_extra

MAX_CHARS = 1_000_000
MAX_SECONDS = 2.0
MAX_TEMPLATE = 200_000  # characters of a template itself
# fmt: off
FILTERS = frozenset((
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "groupby", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string",
    "sum", "title", "tojson", "trim", "unique", "upper",
))
METHODS = frozenset((
    "capitalize", "endswith", "find", "get", "index", "items", "keys", "lower", "lstrip", "replace",
    "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper", "values",
))
# fmt: on


def render_chat(
    template: str, messages: Sequence[Any], *, add_generation_prompt: bool = True, **known: Any
) -> str:
    """The text of a conversation.

    messages: mappings with a role and a content, both text. add_generation_prompt: end where the assistant is
    to speak. known: further names for the template, such as bos_token and eos_token. Raises ValueError with
    one sentence for messages of another form and for whatever a template does wrong.
    """
    checked = [_message(i, message) for i, message in enumerate(messages)]
    if not checked:
        raise ValueError("the conversation has 0 messages, at least 1 is needed")
    if len(template) > MAX_TEMPLATE:
        raise ValueError(f"the chat template has {len(template)} characters, at most {MAX_TEMPLATE} are read")
    jinja2 = import_extra("jinja2", "a chat template")
    names = {"messages": checked, "add_generation_prompt": add_generation_prompt, **known}
    try:
        with _Deadline(MAX_SECONDS):
            pieces = _environment().from_string(template).generate(**names)
            return "".join(_limited(pieces))
    except _TooMuchError as error:
        raise ValueError(f"the chat template {error}") from None
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template fails: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"the chat template fails: {type(error).__name__} {error}") from None


class _TooMuchError(Exception):
    """A limit was reached."""


def _message(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {i} is {message!r}, a mapping with role and content is needed")
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise ValueError(f"message {i} has the {key} {message.get(key)!r}, text is needed")
    return dict(message)


def _limited(pieces: Iterator[str]) -> Iterator[str]:
    n = 0
    for piece in pieces:
        n += len(piece)
        if n > MAX_CHARS:
            raise _TooMuchError(f"prints more than {MAX_CHARS} characters")
        yield piece


class _Deadline:
    """Stops a template's own code after so many seconds of this thread's processor time, line by line."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self) -> None:
        self.end = time.thread_time() + self.seconds
        self.before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: Any, event: str, value: Any) -> Any:
        if frame.f_code.co_filename != "<template>":
            return None
        if time.thread_time() > self.end:
            raise _TooMuchError(f"runs longer than {self.seconds:.0f} seconds")
        return self._trace


def _environment_class() -> Any:
    """The sandbox, made when it is first needed: jinja2 is an extra."""
    jinja2 = import_extra("jinja2", "a chat template")
    sandbox = import_extra("jinja2.sandbox", "a chat template")

    class Environment(sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            numbers = all(isinstance(x, int | float) and abs(x) < 2**31 for x in (left, right))
            if operator == "+" and not numbers:
                _bounded(_weight(left) + _weight(right))
            elif operator == "**" or not numbers:
                kinds = f"{type(left).__name__} and {type(right).__name__}"
                raise jinja2.TemplateError(f"{operator} of {kinds} is not allowed")
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(function, "__name__", "") == "replace" and isinstance(function.__self__, str):
                return _replace(function.__self__, *args, **kwargs)
            return super().call(context, function, *args, **kwargs)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            method = callable(value) and isinstance(obj, str | list | dict | tuple)
            return (not method or attr in METHODS) and super().is_safe_attribute(obj, attr, value)

        def wrap_str_format(self, value: Any) -> None:
            """No str.format: its widths could ask for gigabytes; the attribute is refused like any other."""

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            return Joins().visit(super()._parse(source, name, filename))

    class Joins(import_extra("jinja2.visitor", "a chat template").NodeTransformer):
        """a ~ b, and lists and the like, become calls, so that their sizes are looked at too."""

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802 (jinja's name)
            return self._call("join_texts", [self.visit(child) for child in node.nodes], node.lineno)

        def _bound(self, node: Any) -> Any:
            node = self.generic_visit(node)
            stored = getattr(node, "ctx", "load") != "load"  # names that are assigned to, not a value
            return node if stored else self._call("bounded", [node], node.lineno)

        visit_List = visit_Tuple = visit_Dict = _bound  # noqa: N815 (jinja's names)

        def _call(self, name: str, args: list[Any], lineno: int) -> Any:
            return jinja2.nodes.Call(jinja2.nodes.Name(name, "load"), args, [], None, None, lineno=lineno)

    return Environment


def _environment() -> Any:
    jinja2 = import_extra("jinja2", "a chat template")
    environment = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters = {name: f for name, f in environment.filters.items() if name in FILTERS}
    environment.filters |= {"tojson": _to_json, "join": _join, "replace": _replace}
    environment.globals = {name: environment.globals[name] for name in ("range", "dict", "namespace")}

    def refuse(reason: Any) -> None:
        raise jinja2.TemplateError(str(reason))

    environment.globals["raise_exception"] = refuse
    environment.globals["bounded"] = _bounded_value
    environment.globals["dict"] = lambda *args, **kwargs: _bounded_value(dict(*args, **kwargs))
    environment.globals["join_texts"] = lambda *parts: _join(parts)
    environment.globals["strftime_now"] = lambda form: time.strftime(str(form)[:100])
    return environment


def _weight(value: Any) -> int:
    """Characters and entries of a value, nested ones as often as they stand in it; stops counting past the limit."""
    total, left = 0, [value]
    while left and total <= MAX_CHARS:
        one = left.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, list | tuple | dict):
            total += len(one) + 1
            left.extend(one if not isinstance(one, dict) else [*one.keys(), *one.values()])
        else:
            total += 1
    return total


def _bounded_value(value: Any) -> Any:
    _bounded(_weight(value))
    return value


def _bounded(n: int) -> None:
    if n > MAX_CHARS:
        raise _TooMuchError(f"makes a value of more than {MAX_CHARS} characters or entries")


def _join(values: Any, d: str = "", attribute: str | None = None) -> str:
    """The join filter, with a limit on what comes out."""
    texts = [str(v if attribute is None else v[attribute]) for v in values]
    _bounded(sum(map(len, texts)) + len(texts) * len(str(d)))
    return str(d).join(texts)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    """The replace filter and method, with a limit on what may come out."""
    _bounded(len(str(text)) * max(len(str(new)), 1))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _to_json(value: Any, indent: int | None = None) -> str:
    """The tojson filter as chat templates know it: plain text, no HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(indent, 8))
