"""The Hugging Face hub, for `polyrank train --push-to-hub`: whether it will take a checkpoint, and sending it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrank.model.checkpoint.card import CARD_FILE
from polyrank.model.checkpoint.files import BACKBONE_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from polyrank.model.errors import RankingError
from polyrank.service.cli.output import UsageError

_FILES = [CONFIG_FILE, BACKBONE_FILE, TOKENIZER_FILE, WEIGHTS_FILE, CARD_FILE]


class HubFailed(RankingError):
    """The hub cannot be reached, or refuses; the message says what to do."""


def require_access(repository: str) -> None:
    """Ask the hub, before hours of work, whether it knows the user and the repository is the user's.

    Raises UsageError for a name that is none, no token, or somebody else's name; HubFailed where the hub is out of
    reach or refuses the token.
    """
    from huggingface_hub import HfApi, get_token

    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UsageError(f"--push-to-hub {repository}: give the repository as OWNER/NAME")
    _require_valid(repository)
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

    with _explained(f"the checkpoint is in {checkpoint}; send it by: hf upload {repository} {checkpoint}"):
        api = HfApi()
        address = api.create_repo(repository, private=not public, exist_ok=True)
        message = "Add a checkpoint of polyrank"
        api.upload_folder(folder_path=checkpoint, repo_id=repository, allow_patterns=_FILES, commit_message=message)
    return str(address)


def _require_valid(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"--push-to-hub {repository}: {error}") from error


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
        said = error.server_message or str(error).splitlines()[0]
        raise HubFailed(f"the hub refuses ({error.response.status_code}: {said}); {advice}") from error
    except (HTTPError, OSError) as error:
        raise HubFailed(f"the hub cannot be reached ({error}); {advice}") from error
