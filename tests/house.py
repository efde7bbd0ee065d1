"""The rules of the house, checked on source text alone: who may import whom, and how long things may be.

Sources come as a dict from dotted file name to text (`ubjax/split/__init__.py` is `ubjax.split.__init__`), so
that the checker can be tried on made-up ones. A room is a folder of the package or a file at its top.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "ubjax"
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60

# Bottom up. A module imports from lower floors, and from its own folder; nothing else.
FLOORS = (
    {"typing"},
    {"pytree", "config", "pictures", "compilation_cache", "ladders", "progress"},
    {"ragged", "status", "buckets", "host_arrays", "programs", "positions", "safetensors", "pooling"},
    {"batch", "sampling"},
    {"batch_builder", "host_batch", "validate", "split"},
    {"ubatch"},
    {"memory", "outputs", "usage"},
    {"invariant"},
    {"models", "control", "sequences", "memory_report"},
    {"step", "decode_loop", "encoding", "loaders", "analysis", "prefixes"},
    {"generate", "viz", "scheduling", "gauges", "whole_decode"},
    {"saving", "embeds", "encoder_programs"},
    {"engine_state"},
    {"loops"},
    {"warmup"},
    {"encoder_engine"},
    {"engine"},
    {"verify", "calibrate"},
    {"__init__"},
    {"cli", "testing"},
    {"__main__"},
)
# Side rooms: only what stands at the edge looks into them (and they into themselves).
SIDE_ROOMS = {"loaders", "analysis", "viz", "scheduling"}
SIDE_ROOM_VISITORS = {"verify", "cli", "testing", "__init__"}
# A generation and a warm-up report what they compiled, a calibration makes a cost.
SIDE_DOORS = {("generate", "analysis"), ("warmup", "analysis"), ("calibrate", "analysis")}
# What lies below the models has no neural network in it: index arithmetic on arrays.
WITHOUT_FLAX = frozenset().union(*FLOORS[:7])
# Pairs that the floors would allow.
FORBIDDEN = {("models", "split"), ("models", "validate")}
# Packages of the extras: imported by the function that needs them, never with the module.
OPTIONAL = {"gguf", "tokenizers", "jinja2", "rich", "matplotlib", "pandas", "huggingface_hub"}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module, as an absolute dotted name."""

    target: str
    line: int
    deferred: bool  # inside a function, or for type checkers only


def read_sources(root: Path) -> dict[str, str]:
    """Sources of the package under `root`, by dotted file name."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted((root / PACKAGE).rglob("*.py"))
    }


def room_of(module: str) -> str:
    """The room that a module of the package belongs to: `ubjax.split.equal` and `ubjax.split` -> `split`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _type_checking_only(node: ast.AST) -> list[ast.stmt]:
    """The statements of an `if TYPE_CHECKING:` that never run."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
        return node.body
    return []


def _base_of(node: ast.ImportFrom, package: str) -> str:
    """The absolute name that `from X import ...` takes its names from."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    parents = parents[: len(parents) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


def imports_of(module: str, sources: dict[str, str]) -> Iterator[Import]:
    """Every import in a module, wherever it stands; a submodule taken from a package is named whole."""
    package = module.rpartition(".")[0]
    modules = {name.removesuffix(".__init__") for name in sources}

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(target=alias.name, line=node.lineno, deferred=deferred)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, package)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield Import(target=whole if whole in modules else base, line=node.lineno, deferred=deferred)
        inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        never_run = _type_checking_only(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside or child in never_run)

    yield from walk(ast.parse(sources[module]), False)


def _inner_complaint(room: str, target_room: str) -> str | None:
    """What speaks against an import between two rooms of the package."""
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    if target_room not in floor:
        return f"{target_room} has no floor: give it one in tests/house.py"
    if target_room == room:
        return None
    if floor[target_room] >= floor[room]:
        return f"{target_room} does not lie below {room}"
    if target_room in SIDE_ROOMS and room not in SIDE_ROOM_VISITORS and (room, target_room) not in SIDE_DOORS:
        return f"{target_room} is only for {', '.join(sorted(SIDE_ROOM_VISITORS))}"
    if (room, target_room) in FORBIDDEN:
        return f"{room} knows nothing of {target_room}"
    return None


def _outer_complaint(room: str, found: Import) -> str | None:
    """What speaks against an import from outside the package."""
    distribution = found.target.partition(".")[0]
    if distribution == "flax" and room in WITHOUT_FLAX:
        return f"{room} knows nothing of flax"
    if distribution in OPTIONAL and not found.deferred:
        return f"{distribution} is optional: import it inside the function that needs it"
    return None


def import_complaints(sources: dict[str, str]) -> list[str]:
    """Each broken import rule as `module:line: sentence`; an empty list when the house is in order."""
    known = frozenset().union(*FLOORS)
    complaints = [
        f"{module}:1: {room_of(module)} has no floor: give it one in tests/house.py"
        for module in sources
        if room_of(module) not in known
    ]
    for module in sources:
        room = room_of(module)
        if room not in known:
            continue
        for found in imports_of(module, sources):
            inner = found.target.partition(".")[0] == PACKAGE
            complaint = (
                _inner_complaint(room, room_of(found.target)) if inner else _outer_complaint(room, found)
            )
            if complaint:
                complaints.append(f"{module}:{found.line}: {complaint}")
    return complaints


def size_complaints(name: str, source: str) -> list[str]:
    """Files and functions (docstring included) that have grown too long, as `name:line: sentence`."""
    lines = len(source.splitlines())
    complaints = [f"{name}:1: {lines} lines, {MAX_FILE_LINES} allowed"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                complaints.append(
                    f"{name}:{node.lineno}: {node.name} has {length} lines, {MAX_FUNCTION_LINES} allowed"
                )
    return complaints
