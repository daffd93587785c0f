"""What several commands are given: files, models and a running service. A model of the wrong kind is wrong usage."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from polyrank.index_builder.errors import PoolError
from polyrank.index_builder.layout import why_no_store
from polyrank.index_builder.names import is_encoding
from polyrank.model.errors import InvalidInput, RankingError, WrongKind
from polyrank.model.inference.runners import (
    AUTO,
    BACKENDS,
    FLOAT32,
    INT8,
    OPENVINO,
    PRECISIONS,
    TORCH,
    Runner,
    why_refused,
)
from polyrank.service import API_KEY, BACKEND, PRECISION
from polyrank.service.cli.output import UsageError
from polyrank.service.errors import ServiceUnreachable

if TYPE_CHECKING:
    from polyrank.index_builder.pool.rows import Candidate, Rejected
    from polyrank.index_builder.vectors.encoder import Encode
    from polyrank.model.rankers.networks import VectorRanker
    from polyrank.service.client.clients import Client

_PARTS = ("text", "id")
_COLUMNS_HELP = "columns of tables, or fields of .jsonl, that hold texts and ids"
_ENCODING_HELP = "of .csv pools; default: UTF-8, or what their first bytes say"
L = TypeVar("L")
REFERENCE = Runner(TORCH, FLOAT32)
RERANKER_HINT = ", and this one as --reranker"
_DEFAULT_URL = "http://127.0.0.1:8000"


def add_encoding_option(parser: Any, means: str = _ENCODING_HELP) -> None:
    """Add `--encoding`, for `--pool` unless the help says otherwise."""
    parser.add_argument("--encoding", type=_encoding, metavar="NAME", help=means)


def _encoding(name: str) -> str:
    if not is_encoding(name):
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; name one such as windows-1252 or utf-16")
    return name


def add_columns_option(parser: Any) -> None:
    """Add `--columns`, for pool files."""
    parser.add_argument("--columns", type=_columns, default={}, metavar="text=NAME,id=NAME", help=_COLUMNS_HELP)


def _columns(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",")]
    columns = {part.strip(): column.strip() for part, _, column in pairs}
    if wrong := [part for part, column in columns.items() if part not in _PARTS or not column]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be text or id, with = and a column")
    if len({*columns.values()}) < len(pairs):
        raise argparse.ArgumentTypeError("name each part and each column once")
    return columns


def read_candidates(
    pools: Sequence[Path], encoding: str | None, columns: Mapping[str, str] | None = None
) -> Iterator["Candidate"]:
    """Stream the good rows of a pool; after the last one, report those that were left out on standard error."""
    from polyrank.index_builder.pool.rows import read_pool

    return _good(read_pool(pools, encoding=encoding, columns=columns or {}))


def _good(rows: "Iterable[Candidate | Rejected]") -> Iterator["Candidate"]:
    from polyrank.index_builder.pool.rows import Candidate

    example, count = None, 0
    for row in rows:
        if isinstance(row, Candidate):
            yield row
        else:
            example, count = row if example is None or row.is_bad > example.is_bad else example, count + 1
    if example is not None:
        where = f"{example.file}:{example.line}: {example.reason}"
        print(f"rows of the pool left out: {count}; one of them: {where}", file=sys.stderr)


@contextmanager
def foreign_files_named(arguments: argparse.Namespace) -> Iterator[None]:
    """Where files cannot be used because another tool wrote them, say which one, and how they are converted."""
    try:
        yield
    except WrongKind:
        raise
    except (InvalidInput, PoolError) as error:
        if (advice := _advice(arguments)) is None:
            raise
        raise InvalidInput(f"{error}; {advice}") from error


def _advice(arguments: argparse.Namespace) -> str | None:
    from polyrank.index_builder.convert.kinds import kind_of

    option_values = (value if isinstance(value, list) else [value] for value in vars(arguments).values())
    for path in (each for values in option_values for each in values if isinstance(each, Path) and each.is_file()):
        with suppress(RankingError, OSError):
            tool_map = kind_of(path).map
            if "documents" in tool_map.paths and tool_map.paths["text"] == "text":  # a pool as it is
                continue
            return f"{path} looks like {tool_map.about}: polyrank convert {quote(str(path))} --output DIR"
    return None


def require_writable(option: str, output: Path, inputs: Iterable[Path]) -> None:
    """Refuse, before the work begins, an option's file that could not be written after it or that is an input.

    Raises UsageError if it is no plain file, its directory is missing, or it is one of the inputs.
    """
    if output.is_dir():
        raise UsageError(f"{option} {output} is a directory; name a file")
    if output.exists() and not output.is_file():  # it would be replaced: also /dev/null, by whoever may
        raise UsageError(f"{option} {output} is no plain file; name another one")
    if not output.parent.is_dir():
        raise UsageError(f"{option} {output}: there is no directory {output.parent}")
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"{option} {output} is an input too; name another file")


@contextmanager
def wrong_usage(before: str = "") -> Iterator[None]:
    """Raise UsageError for InvalidInput, `before` its message what names the option."""
    try:
        yield
    except InvalidInput as error:
        raise UsageError(f"{before}{error}") from error


def require_unused(option: str, directory: Path) -> None:
    """Raise UsageError where an option's directory holds something, or is a file."""
    from polyrank.model.checkpoint.files import require_free

    with wrong_usage(f"{option} "):
        require_free(directory)


def require_store(root: Path) -> None:
    """Raise UsageError if the directory is no store; an empty one is a store of which nothing was built yet."""
    if why := why_no_store(root):
        raise UsageError(f"{why}; polyrank build makes a store")


def words_left_out(model: str) -> str:
    """Say why a reranker's words do not count; its name goes before."""
    return f"ranks by its pairs alone: {model} counts no words, so it is not known how rare they are"


def add_runner_options(
    parser: argparse.ArgumentParser, backend: str = f"{BACKEND}, or auto", precision: str = f"{PRECISION}, or auto"
) -> None:
    """Add `--backend` and `--precision`; the words say what holds without them."""
    parser.add_argument("--backend", choices=BACKENDS, help=f"what runs the model; default: {backend}")
    parser.add_argument("--precision", choices=PRECISIONS, help=f"what it computes in; default: {precision}")


def chosen_runner(backend: str | None = None, precision: str | None = None) -> Runner:
    """Return what is to run a model: what is asked for, else the environment's, else AUTO. Raises as `_checked`."""
    return _checked(Runner(backend or os.environ.get(BACKEND) or AUTO, precision or os.environ.get(PRECISION) or AUTO))


def reference_runner(backend: str | None, precision: str | None) -> Runner:
    """Return what is to run a model: what is asked for, else the reference, torch in float32. Raises as `_checked`.

    In int8 it is OpenVINO, which alone computes in it.
    """
    return _checked(Runner(backend or (OPENVINO if precision == INT8 else TORCH), precision or FLOAT32))


def _checked(runner: Runner) -> Runner:
    """Raise UsageError where back-end and precision do not go together."""
    if why := why_refused(runner):
        raise UsageError(why)
    return runner


@contextmanager
def of_flag(before: str = "", after: str = "") -> Iterator[None]:
    """Name the flag of a model of the wrong kind, `before` the message, and what to do with the model `after` it."""
    try:
        yield
    except WrongKind as error:
        raise WrongKind(f"{before}{error}{after}") from error


def loaded(loader: Callable[..., L], name: str, runner: Runner = REFERENCE, before: str = "", after: str = "") -> L:
    """Load a model by a function of rankers/load.py, which refuses one of another kind before torch is imported."""
    from polyrank.model.inference import disk_cache

    with of_flag(before, after):
        return loader(name, backend=runner.backend, precision=runner.precision, disk=disk_cache.configured(os.environ))


def encoded_by(directory: Path) -> "Encode":
    """Return what encodes texts by the model in a directory, which is loaded when the first text comes."""
    from polyrank.index_builder.vectors.encoder import encode_texts
    from polyrank.model.rankers.load import load_vector_ranker

    @cache
    def ranker() -> "VectorRanker":
        return loaded(load_vector_ranker, str(directory), chosen_runner())

    return lambda texts: encode_texts(ranker(), texts)


def add_service_options(parser: argparse.ArgumentParser, source: Any = None) -> None:
    """Add `--url`, to the group `source` if there is one, and `--api-key`; `service_of` heeds them."""
    (source or parser).add_argument("--url", help=f"a running service; default: {_DEFAULT_URL}")
    parser.add_argument("--api-key", metavar="KEY", help=f"the service's; better {API_KEY}: other users see arguments")


def json_object(flag: str, text: str) -> dict[str, Any]:
    """Return the JSON object given by a flag; UsageError if it is none."""
    from polyrank.service.client.attempts import in_json

    try:
        value = json.loads(text)
        in_json(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f'{flag} is no JSON ({error}); quote it for the shell: {flag} \'{{"lang": "en"}}\'') from None
    if not isinstance(value, dict):
        raise UsageError(f'{flag} must be a JSON object, such as {{"lang": "en"}}')
    return value


@contextmanager
def service_of(arguments: argparse.Namespace) -> Iterator["Client"]:
    """Yield a client of the service that the arguments name; it asks once.

    Raises:
        UsageError: the URL is none, the environment's proxy cannot be used, or the key cannot be sent; the error does
            not quote it.
        ServiceUnreachable: the service does not answer, or says that something is wrong.
    """
    key = (arguments.api_key or os.environ.get(API_KEY, "")).strip()
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"the API key (--api-key or {API_KEY}) has characters that no key has")
    url = arguments.url or _DEFAULT_URL
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: begin it with http:// or https://")
    from polyrank.service.client.attempts import CallFailed, Refused
    from polyrank.service.client.clients import Client

    try:
        client = Client(url, key or None, max_retries=0)
    except (ValueError, ImportError) as error:  # the latter for SOCKS proxies
        raise UsageError(f"--url {url}: {error}") from None
    try:
        with client:
            yield client
    except Refused as error:
        hint = f" (the variable {API_KEY})" if error.status == 401 else ""
        raise ServiceUnreachable(f"{url.rstrip('/')}: {error.detail}{hint}") from error
    except CallFailed as error:
        raise ServiceUnreachable(str(error)) from error
