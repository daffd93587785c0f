"""Options, described once, on their field: what they mean, their bounds and defaults; and checks of types.

Importing this module is quick: command line and reference pages are made of the fields without torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from polyrank.model.errors import CheckpointInvalid

WIDEST: Final = 65_536  # components of a vector, and rows, labels and layers of a model
MOST_WHOLE: Final = 10_000_000  # of any whole number in a model's configs, far above the sizes of published ones


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `least` to `most`, both included; whole numbers if these are.

    >>> str(Bounds(1, 65_535)), str(Bounds(0.0, 1.0))
    ('a whole number from 1 to 65,535', 'a number from 0 to 1')
    """

    least: float
    most: float

    @property
    def kind(self) -> type[int] | type[float]:
        return int if isinstance(self.least, int) else float

    def hold(self, value: float) -> bool:
        """Whether they hold a value; none that is not a number."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        kind, form = ("a whole number", ",") if self.kind is int else ("a number", ",.12g")
        return f"{kind} from {self.least:{form}} to {self.most:{form}}"


if TYPE_CHECKING:
    from _typeshed import DataclassInstance

K = TypeVar("K", bound="DataclassInstance")
_MOST_SHOWN = 80  # letters of a value in a message


def option(default: Any, means: str, bounds: Bounds | None = None, **about: Any) -> Any:
    """Make a field of a dataclass that somebody can give as an option.

    Args:
        default: its value where nothing is given; with None it may be told by `otherwise` or `start`.
        means: what it is, for help and reference pages.
        bounds: of a number, or of each in a list of them.
        about: `group` of the help in which it stands. `metavar`: its value there. `otherwise`: what holds where None,
            the default, is left; `start`: the same, as a value. `name`: of the option, where it is not the field's.
    """
    return field(default=default, metadata={"means": means, "bounds": bounds, **about})


class Option(NamedTuple):
    """An option as the field `field` describes it. hint: its annotation without None. about: as `option` was given."""

    name: str
    field: str
    default: Any
    hint: Any
    means: str
    bounds: Bounds | None
    about: Mapping[str, Any]


def options_of(kind: type[Any]) -> Iterator[Option]:
    """Yield the options of a dataclass, in their order; where a subclass has another default, the words stay."""
    declared = [each for base in reversed(kind.__mro__) for each in vars(base).get("__dataclass_fields__", {}).values()]
    described: dict[str, Field[Any]] = {each.name: each for each in declared if "means" in each.metadata}
    hints = get_type_hints(kind)
    for each in fields(kind):
        if each.name in described:
            about = described[each.name].metadata
            name, hint = about.get("name", each.name), without_none(hints[each.name])
            yield Option(name, each.name, each.default, hint, about["means"], about["bounds"], about)


def out_of_bounds(config: "DataclassInstance") -> Iterator[Option]:
    """Yield the options of a dataclass whose value, or one of whose values, is beyond their bounds."""
    for each in options_of(type(config)):
        value = getattr(config, each.field)
        whole = value if isinstance(value, list | tuple) else (value,)
        if each.bounds is not None and not all(one is None or each.bounds.hold(one) for one in whole):
            yield each


def without_none(hint: Any) -> Any:
    """Return an annotation without None beside its one other choice."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [choice] = [each for each in get_args(hint) if each is not type(None)]
    return choice


@dataclass(frozen=True, kw_only=True)
class Block:
    """What one architecture has beyond others: the object of its name in `polyrank.json`.

    Fields of a subclass that are made by `option` are options of `polyrank train`, too: not given, they are as in the
    checkpoint to go on from, or the default.
    """

    of: ClassVar[str]

    def __post_init__(self) -> None:
        require_types(self, f"{self.of}.")
        for each in out_of_bounds(self):
            require(False, f"{self.of}.{each.field} must be {each.bounds}")


def require(holds: bool, message: str) -> None:
    """Raise CheckpointInvalid with a message about `polyrank.json`."""
    if not holds:
        raise CheckpointInvalid(f"polyrank.json: {message}")


def require_known(raw: Mapping[str, Any], names: set[str], prefix: str = "") -> None:
    """Refuse fields of a JSON object that are not known."""
    unknown = sorted(set(raw) - names)
    require(not unknown, f"unknown field {prefix}{', '.join(unknown)}; written by a newer release?")


def read_block(kind: type[K], raw: object, name: str) -> K:
    """Read a dataclass from the object `name` in `polyrank.json`; JSON's lists become tuples."""
    require(isinstance(raw, dict), f"{name} must be an object")
    assert isinstance(raw, dict)
    require_known(raw, {each.name for each in fields(kind)}, f"{name}.")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()})
    except TypeError as error:  # a field without a default is missing
        raise CheckpointInvalid(f"polyrank.json: {name}: {error}") from error


def require_types(config: Any, prefix: str) -> None:
    """Check each field of a dataclass against its annotation: JSON may hold any type anywhere."""
    hints = get_type_hints(type(config))
    for name in (each.name for each in fields(config)):
        value, hint = getattr(config, name), hints[name]
        require(_is_a(value, hint), f"{prefix}{name} is {shown(value)}, not {_in_words(hint)}")
        whole = value if isinstance(value, list | tuple) else (value,)
        large = any(isinstance(each, int) and abs(each) > MOST_WHOLE for each in whole)
        require(not large, f"{prefix}{name} is larger than {MOST_WHOLE}")


def _is_a(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):  # the first where a Literal takes part
        return any(_is_a(value, choice) for choice in get_args(hint))
    if origin is Sequence:
        return isinstance(value, Sequence) and all(_is_a(each, get_args(hint)[0]) for each in value)
    if origin is Mapping:
        key, item = get_args(hint)
        return isinstance(value, Mapping) and all(_is_a(k, key) and _is_a(v, item) for k, v in value.items())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def shown(value: object) -> str:
    """Return a value as a message shows it, cut."""
    text = repr(list(value) if isinstance(value, tuple) else value)  # as JSON has it
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if get_origin(hint) is Sequence:
        return "a list"
    if get_origin(hint) is Mapping:
        items = {Any: "", str: " of strings", float: " of numbers"}
        return f"an object{items[get_args(hint)[1]]}"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_in_words, get_args(hint)))
    return _JSON_NAMES.get(hint, str(hint.__name__))


_JSON_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
