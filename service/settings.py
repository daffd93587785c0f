"""The settings of a server: one frozen object that an entry point makes once.

`Settings.load` merges flags, POLYRANK_ variables and the TOML file that POLYRANK_CONFIG names; flags win over
variables, variables over the file. The constructor uses its arguments alone.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import SERVING_TIMEOUT_SECONDS, connect
from polyrank.index_builder.scale.cluster import Address, why_unusable
from polyrank.model.inference.disk_cache import DEFAULT_MIB, MEBIBYTES
from polyrank.model.inference.runners import INT8, OPENVINO, BackendName, PrecisionName, Runner, why_refused
from polyrank.model.inputs import read_input
from polyrank.model.options import Bounds
from polyrank.service import API_KEY, CONFIG, POOL_NAME, PREFIX
from polyrank.service.api import CANDIDATES_CEILING
from polyrank.service.api.findings import TYPES, what_is_wrong
from polyrank.service.auth import PER_S, keys
from polyrank.service.errors import SettingsError

_MOST_CONFIG_BYTES = 1 << 20
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?", re.ASCII)
HOST = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*|[\da-f.]*:[\da-f:.]*", re.ASCII | re.IGNORECASE)  # no port


class Settings(BaseSettings):
    """Everything that differs between two deployments of the same store."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    # Ordered by how often people set them: `make docs` keeps this order.
    store: Annotated[dict[str, Path], NoDecode] = Field(
        default={},
        description="the store's directory; `NAME=DIR` for each of several pools, separated by commas in the variable, "
        "a table in the file; not set: only the other models serve",
    )
    host: str = Field(default="127.0.0.1", description="where to listen")
    port: int = Field(default=8000, ge=0, le=65535, description="0: any free one, printed when ready")
    reranker: str | None = Field(default=None, min_length=1, description="a cross- or uni-encoder for `rerank`")
    classifier: str | None = Field(
        default=None, min_length=1, description="a checkpoint of `polyrank train --task classify`, for `/classify`"
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="Redis for vectors of sent texts and copies of generations; with `?secret=...` at its end nobody "
        "else can make values that are used",
    )
    keys_file: Path | None = Field(
        default=None, description="API keys, as `polyrank keys` writes them; not set: everybody may do everything"
    )
    workers: int = Field(default=1, ge=1, le=64, description="serving processes on one socket, each with its own model")
    pool_root: Path | None = Field(default=None, description="`POST /index` may name pools under it")
    model_root: Path | None = Field(default=None, description="`POST /index` may name models under it")
    vectors: Literal["local", "redis"] = Field(
        default="local",
        description="where candidates' vectors are read",
    )

    feedback: Literal["off", "ids", "texts"] = Field(
        default="off",
        description="what is recorded of rankings and of feedback: nothing; ids, to count; or also texts, to train on",
    )
    feedback_days: int = Field(default=30, ge=1, le=3650, description="how long that is kept")
    feedback_mb: int = Field(
        default=1024, ge=1, le=1_000_000, description="MiB of it on disk, a pool; beyond them the oldest goes"
    )
    feedback_redact: str | None = Field(
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="a function, as `package:function`, from a redacted text to what may be recorded",
    )

    cluster: str | None = Field(
        default=None, min_length=1, description="the Ray cluster that holds the parts of the pool: HOST:PORT, or auto"
    )
    shard_replicas: int = Field(default=1, ge=1, le=16, description="shards that hold each part")
    hedge_ms: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        description="how long a shard may take before another one is asked; 0: as long as 19 of 20 take",
    )
    min_searched: float = Field(
        default=0.5, ge=0, le=1, description="503 if the shards that answer hold less of the pool"
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the lowest level logged"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="lines for people or JSON objects; texts are never logged"
    )
    metrics_access: Literal["open", "admin"] = Field(
        default="open", description="whether `/metrics` needs an admin key"
    )
    tracing: bool = Field(default=False, description="send spans to the collector that the `OTEL_*` variables name")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="names as which callers reach the server, besides loopback names and its address; "
        "`*.shop.example`: all that end so; `*`: any; separated by commas in the variable",
    )
    playground: bool = Field(default=True, description="the page at `/playground`, where `/` leads")
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="pages of these origins may call; separated by commas in the variable"
    )

    backend: BackendName = Field(
        default="auto", description="what runs the models; auto: torch or openvino, whichever is faster here"
    )
    precision: PrecisionName = Field(
        default="auto", description="of the models; auto: whichever is faster here and as good as float32"
    )
    device: str = Field(
        default="auto",
        description="of models and scan; `cuda:1`: the second GPU; auto: a GPU if any, but for OpenVINO and int8",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="of OpenVINO, torch, NumPy and FAISS; not set: as processors and quota allow",
    )
    deterministic: bool = Field(
        default=False, description="read each text alone: equal requests get bit-equal scores, more slowly"
    )

    max_timeout_ms: int = Field(
        default=10_000, ge=1, le=3_600_000, description="the longest and the default `timeout_ms`"
    )
    max_candidates: int = Field(
        default=10_000, ge=1, le=CANDIDATES_CEILING, description="candidates sent with one request; 413 above"
    )
    max_text_chars: int = Field(
        default=20_000,
        ge=1,
        le=10_000_000,
        description="characters of one text; a turn loses its beginning, other texts get 422 above",
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, le=2**30, description="bytes of one request; 413 above"
    )
    max_queue_tokens: int = Field(
        default=262_144,
        ge=1,
        le=1_000_000_000,
        description="tokens of all requests in progress; 503 with `Retry-After` above",
    )
    max_connections: int = Field(
        default=2000, ge=1, le=1_000_000, description="connections of each process at a time; 503 above"
    )
    rate_limit_per_s: float | None = Field(
        default=None,
        ge=PER_S.least,
        le=PER_S.most,
        description="calls of a key without a rate, or of everybody where there are no keys",
    )

    text_cache_ttl_s: int = Field(
        default=86_400, ge=0, le=365 * 86_400, description="how long Redis keeps vectors of sent texts; 0: not at all"
    )
    vector_cache_mb: int = Field(
        default=64, ge=0, le=1_000_000, description="MiB in memory for vectors of sent texts, and for those from Redis"
    )
    result_cache_ttl_s: int = Field(
        default=0, ge=0, le=365 * 86_400, description="how long answers of `/rank` are kept; 0: not at all"
    )
    result_cache_mb: int = Field(default=64, ge=0, le=1_000_000, description="MiB in memory for answers of `/rank`")

    compiled_cache_dir: Path | None = Field(
        default=None,
        description="where compiled models are kept; not set: in the user's directory of caches",
    )
    compiled_cache_mb: int = Field(
        default=DEFAULT_MIB,
        ge=MEBIBYTES.least,
        le=MEBIBYTES.most,
        description="MiB of compiled models on disk; 0: none are kept",
    )

    keep_generations: int = Field(
        default=2, ge=1, le=10_000, description="kept after a rebuild by `POST /index`, the active one among them"
    )
    compact_after: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000_000,
        description="upserts and deletions after which the server compacts; 0: never by itself",
    )
    drain_delay_s: float = Field(default=5.0, ge=0, le=300, description="how long requests are accepted after SIGTERM")

    rerank_dialect: Literal["tei", "cohere", "jina", "infinity", "voyage"] | None = Field(
        default=None,
        description="of `/rerank` bodies with `documents`; not set: told by them",
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="the name that `/info` and compatible routes give the models",
    )
    strict_model: bool = Field(
        default=False, description="404 where a compatible route is asked for a model that is not served"
    )
    info_model_type: Literal["reranker", "embedding"] = Field(
        default="reranker", description="the kind of server that `/info` shows to TEI's clients"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the constructor use its arguments alone; `load` reads the other sources."""
        return (init_settings,)

    @field_validator("store", mode="before")
    @classmethod
    def _name_stores(cls, value: object) -> object:
        if value is None or isinstance(value, Mapping):
            return value or {}
        paths: dict[str, str | Path] = {}
        for name, path in _named_stores(value if isinstance(value, list | tuple) else [value]):
            if name in paths:
                whose = f"are given for the pool {name}" if name else "have no name: write NAME=DIR"
                raise ValueError(f"two directories {whose}")
            if not path:
                raise ValueError(f"{name}= lacks the directory: write {name}=DIR")
            paths[name] = path
        return paths

    @field_validator("store")
    @classmethod
    def _check_stores(cls, stores: dict[str, Path]) -> dict[str, Path]:
        for name in filter(None, stores):
            if not re.fullmatch(POOL_NAME, name):
                raise ValueError(
                    f"{name[:80]!r} names no pool: up to 64 letters, digits, dots, hyphens and underscores, first a "
                    "letter or a digit"
                )
        names: dict[Path, str] = {}
        for name, path in stores.items():
            if (other := names.setdefault(path.resolve(), name)) != name:
                raise ValueError(f"the pools {other or '(no name)'} and {name or '(no name)'} are both in {path}")
        return stores

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url:  # an empty variable means that there is none
            try:
                connect(url.get_secret_value(), SERVING_TIMEOUT_SECONDS).close()  # parses the URL; nothing is sent
            except StoreUnavailable as error:
                raise ValueError(str(error)) from None
        return url

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        try:
            host.encode("idna")  # as the system's resolver is asked
        except UnicodeError:
            raise ValueError("must be an address or the name of a machine") from None
        return host

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError("must be auto, cpu, cuda, or cuda: and the number of a GPU, as in cuda:1")
        return device

    # As compose files and charts write what is not given.
    @field_validator(
        *("cluster", "reranker", "classifier", "keys_file", "pool_root", "model_root"),
        *("compiled_cache_dir", "served_model_name", "feedback_redact"),
        mode="before",
    )
    @classmethod
    def _take_empty_as_none(cls, path: object) -> object:
        return path or None

    @field_validator("allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no host; write rank.shop.example, *.shop.example, an address or *")
        return tuple(host.lower() for host in hosts)

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _is_origin(origin):
                raise ValueError(f"{origin!r} is no origin; write https://shop.example, without a path, or *")
        return origins

    @field_validator("backend")
    @classmethod
    def _openvino_needs_its_package(cls, backend: str) -> str:
        if backend == OPENVINO and find_spec("openvino") is None:
            raise ValueError("install its package: pip install openvino")
        return backend

    @field_validator("tracing")
    @classmethod
    def _tracing_needs_its_packages(cls, tracing: bool) -> bool:
        if tracing and not all(find_spec(f"opentelemetry.{name}") for name in ("sdk", "exporter")):
            raise ValueError("install its packages: pip install 'polyrank[otel]'")
        return tracing

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if not self.store and self.reranker is None and self.classifier is None:
            alone = "or a reranker or a classifier alone"
            raise ValueError(f"store: name the store directory (--store DIR or POLYRANK_STORE), {alone}")
        if self.vectors == "redis" and self.redis_url is None:
            raise ValueError("vectors = redis needs redis_url (--redis URL)")
        self._check_cluster()
        if self.feedback != "off" and not self.store:
            raise ValueError("feedback: it is recorded in the store; name one (--store DIR)")
        if self.feedback_redact is not None and self.feedback != "texts":
            raise ValueError("feedback_redact needs feedback = texts")
        if self.metrics_access == "admin" and self.keys_file is None:
            raise ValueError("metrics_access = admin needs keys_file")
        on_gpu = self.device.startswith("cuda")
        if on_gpu and self.backend == OPENVINO:
            raise ValueError(f"backend = {self.backend} runs on CPUs; use torch on a GPU")
        if on_gpu and self.precision == INT8:
            raise ValueError(f"precision = {self.precision} runs on CPUs; use another one on a GPU")
        if why := why_refused(Runner(self.backend, self.precision)):
            raise ValueError(f"precision: {why}")
        return self

    def _check_cluster(self) -> None:
        if self.cluster is None:
            if alone := sorted({"shard_replicas", "hedge_ms", "min_searched"} & self.model_fields_set):
                raise ValueError(f"{alone[0]} needs cluster (--cluster auto)")
            return
        if why := why_unusable(self.cluster):
            raise ValueError(why)
        if not self.store:
            raise ValueError("cluster: name the store (--store DIR)")
        if [*self.store] != [""]:
            raise ValueError("cluster: shards hold one pool, without a name (--store DIR)")
        if self.vectors == "redis":
            raise ValueError("cluster: shards read vectors from the store's disk; leave vectors = redis out")
        if self.workers > 1:
            raise ValueError("cluster: each serving process would start shards of its own; leave workers at 1")

    @classmethod
    def load(cls, flags: Mapping[str, Any]) -> "Settings":
        """Merge flags, environment and file; a flag that is None was not given.

        Raises SettingsError if a setting or the keys file is wrong; the message is one line that names it.
        """
        _refuse_unknown_variables(os.environ)
        from_flags = {name: value for name, value in flags.items() if value is not None}
        path = os.environ.get(CONFIG)
        from_file = read_toml(Path(path), cls.model_fields, f"{CONFIG}={path}") if path else {}
        merged = {**from_file, **EnvSettingsSource(cls)(), **from_flags}
        try:
            settings = cls(**merged)
        except ValidationError as exc:
            raise SettingsError(explained(exc)) from None
        if settings.keys_file is not None:
            keys.read(settings.keys_file)
        return settings

    @property
    def is_open(self) -> bool:
        """Whether callers on other machines may do everything: there are no keys, and it listens beyond this one."""
        return self.keys_file is None and not Address(self.host, self.port).is_loopback

    def redis(self) -> str | None:
        """Return the Redis URL with its password, which `repr` of the settings hides."""
        return self.redis_url.get_secret_value() if self.redis_url else None


def _named_stores(values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and directories; "" is the name where none is given.

    A text that begins with `NAME=` may go on after a comma with the next one. A path that looks so is written `./a=b`.
    Any name counts here, so that a wrong one is refused as such, and not as part of a path.
    """
    for each in values:
        if isinstance(each, str) and re.match("[^/=,]+=", each):
            for one in re.split(",(?=[^/=,]+=)", each):
                name, path = one.split("=", 1)
                yield name.strip(), path.strip()
        elif each:
            yield "", each


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    names = {PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG, API_KEY}
    unknown = sorted(name for name in environ if name.upper().startswith(PREFIX) and name.upper() not in names)
    if unknown:
        raise SettingsError(f"unknown setting in the environment: {_named(unknown, names)}")


def _is_origin(text: str) -> bool:
    """Whether the text is an origin as browsers send it: scheme, host and perhaps a port, in lower case."""
    try:
        parts = urlsplit(text)
        return bool(parts.scheme and parts.hostname) and parts.port != 0 and text == f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        return False


def read_toml(path: Path, names: Iterable[str], called: str) -> dict[str, Any]:
    """Read a file of settings; raises SettingsError, also where it has others than the known ones.

    `called`: what an error calls a file that cannot be read.
    """
    try:
        values = tomllib.loads(read_input(path, _MOST_CONFIG_BYTES).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise SettingsError(f"{called} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if unknown := sorted(set(values) - set(names)):
        raise SettingsError(f"unknown setting in {path}: {_named(unknown, names)}")
    return values


def _named(unknown: Iterable[str], names: Iterable[str]) -> str:
    """Unknown names, each with the one that was probably meant."""
    likely = {name: get_close_matches(name, [*names], 1) for name in unknown}
    return ", ".join(f"{name}; did you mean {like[0]}?" if like else name for name, like in likely.items())


def bounds_of(name: str, fields: Mapping[str, FieldInfo] = Settings.model_fields) -> Bounds | None:
    """Return what a setting that is a number may be; None: it is none."""
    field = fields[name]
    kind = float if float in (field.annotation, *get_args(field.annotation)) else int
    ends = [kind(getattr(each, end)) for end in ("ge", "le") for each in field.metadata if hasattr(each, end)]
    return Bounds(*ends) if len(ends) == 2 else None


def explained(invalid: ValidationError, fields: Mapping[str, FieldInfo] = Settings.model_fields) -> str:
    """Say in one line what is wrong with settings of these fields."""
    return "; ".join(_explain(error, fields) for error in invalid.errors(include_input=False))


def _explain(error: Any, fields: Mapping[str, FieldInfo]) -> str:
    where = ".".join(str(part) for part in error["loc"] if part != "")
    if where in fields and (bounds := bounds_of(where, fields)):
        return f"{where}: must be {bounds}"
    expected = TYPES.get(error["type"])
    what = f"must be {expected}" if expected else what_is_wrong(error)
    return f"{where}: {what}" if where else what
