"""Checkpoints for others: `polyrank export` in the layout of another library, and `train --push-to-hub` to the hub."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.errors import RankingError
from polyrank.service.cli.arguments import wrong_usage
from polyrank.service.cli.output import UsageError, add_json_option, print_result

if TYPE_CHECKING:
    from polyrank.model.config import ModelConfig

_LAYOUTS = ("sentence-transformers",)
_DESCRIPTION = """Write a bi-encoder for sentence-transformers: the same vectors, in a directory that
SentenceTransformer reads. Other architectures need more than one vector of each side, and are refused."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("export", help="write a bi-encoder for another library", description=_DESCRIPTION)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="directory of a bi-encoder")
    parser.add_argument("--to", required=True, choices=_LAYOUTS, help="the library that is to read it")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="new or empty")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export, and say what the other library does not get; what cannot be is refused before torch is imported."""
    from polyrank.model.checkpoint.files import require_free
    from polyrank.model.checkpoint.lookup import is_checkpoint, require_exportable

    if not is_checkpoint(arguments.checkpoint):
        raise UsageError(f"{arguments.checkpoint} is no checkpoint directory; export what `polyrank train` wrote")
    with wrong_usage():
        require_exportable(arguments.checkpoint)
        require_free(arguments.output)
    from polyrank.model.checkpoint.export import export

    config = export(arguments.checkpoint, arguments.output)
    facts = {
        "output": str(arguments.output),
        "layout": arguments.to,
        "routes": ["query", "document"] if config.sides_differ else [],
        "left_out": _left_out(config),
    }
    lines = [f"{arguments.output}: written for {arguments.to}"]
    if facts["routes"]:
        lines.append("contexts and candidates are encoded in two ways: use encode_query and encode_document")
    lines += [f"left out: {each}" for each in _left_out(config)]
    print_result(arguments, facts, *lines)
    return 0


def _left_out(config: "ModelConfig") -> list[str]:
    parts = []
    if config.evidence is not None:
        parts.append("words, which count in polyrank's scores: rankings differ")
    if config.calibration is not None:
        parts.append("the calibration, which makes probabilities of scores")
    return parts


class HubFailed(RankingError):
    """The hub cannot be reached, or refuses; the message says what to do."""


def require_access(repository: str) -> None:
    """Ask the hub, before hours of work, whether it knows the user and the repository is the user's.

    Raises UsageError for a name that is none, no token, or somebody else's name; HubFailed where the hub is out of
    reach or refuses the token.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UsageError(f"--push-to-hub {repository}: give the repository as OWNER/NAME")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"--push-to-hub {repository}: {error}") from error
    if get_token() is None:
        raise UsageError("--push-to-hub needs a token of the hub: `hf auth login`, or the variable HF_TOKEN")
    with _explained("train without --push-to-hub, or when it can be reached"):
        user = HfApi().whoami()
    owners = [user["name"], *(each["name"] for each in user.get("orgs", ()))]
    if owner not in owners:
        raise UsageError(f"--push-to-hub {repository}: the token is for {', '.join(owners)}")


def push(checkpoint: Path, repository: str, public: bool) -> str:
    """Send a checkpoint's files and its card; returns the address of the repository, which is made if there is none.

    A repository that is there stays as public as it is.

    Raises HubFailed; the checkpoint is on disk all the same.
    """
    from huggingface_hub import HfApi

    from polyrank.model.checkpoint.card import CARD_FILE
    from polyrank.model.checkpoint.files import BACKBONE_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE

    files = [CONFIG_FILE, BACKBONE_FILE, TOKENIZER_FILE, WEIGHTS_FILE, CARD_FILE]
    with _explained(f"the checkpoint is in {checkpoint}; the same command trains no more and sends it"):
        api = HfApi()
        address = api.create_repo(repository, private=not public, exist_ok=True)
        message = "Add a checkpoint of polyrank"
        api.upload_folder(folder_path=checkpoint, repo_id=repository, allow_patterns=files, commit_message=message)
    return str(address)


@contextmanager
def _explained(advice: str) -> Iterator[None]:
    """Turn the errors of the hub's client into one line, with what to do."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise HubFailed(f"HF_HUB_OFFLINE forbids asking the hub; unset it, or {advice}") from error
    except HfHubHTTPError as error:
        reason = error.server_message or str(error).splitlines()[0]
        raise HubFailed(f"the hub refuses ({error.response.status_code}: {reason}); {advice}") from error
    except (HTTPError, OSError) as error:
        raise HubFailed(f"the hub cannot be reached ({error}); {advice}") from error
