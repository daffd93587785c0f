"""Every error has a status, a stable name, and says nothing that it should not."""

from collections.abc import Iterator

import orjson
import pytest

import polyrank.index_builder.errors as index_errors
import polyrank.service.errors as service_errors
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.service.http.plumbing import problems

# Some end the process before there is a request, one is a client's, others end a build in its process or a command.
NEVER_ANSWERED = {
    service_errors.SettingsError, service_errors.WorkerFailed, service_errors.ServiceUnreachable,
    index_errors.BackupInvalid, index_errors.LeaseLost, index_errors.ClusterUnavailable, index_errors.SwitchOvertaken,
    service_errors.EraseUnfinished, service_errors.FeedbackUnusable, service_errors.LoopBusy, service_errors.LoopFailed,
}  # fmt: skip


def _tree(kind: type[RankingError]) -> Iterator[type[RankingError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _tree(each)


def _body(response) -> dict:
    assert response.media_type == "application/problem+json"
    return orjson.loads(response.body)


@pytest.mark.parametrize("module", [index_errors, service_errors])
def test_no_error_of_serving_falls_through_to_internal_by_accident(module) -> None:
    leaves = [each for each in _tree(RankingError) if each.__module__ == module.__name__ and not each.__subclasses__()]
    assert leaves
    accepted = NEVER_ANSWERED | {index_errors.DiskFull}
    for leaf in leaves:
        assert leaf.slug != RankingError.slug or leaf in accepted, f"{leaf.__name__} has no status of its own"


def test_slugs_are_unique_per_meaning() -> None:
    kinds = {(each.slug, each.status, each.title, each.rejected) for each in _tree(RankingError)}
    assert len({slug for slug, *_ in kinds}) == len(kinds) > 40


def test_a_problem_has_the_members_of_the_standard() -> None:
    body = _body(problems.from_error(service_errors.NotReady("no generation"), "r1"))
    assert body == {
        "type": "urn:polyrank:problem:not-ready", "title": "Nothing is served yet",
        "status": 503, "detail": "no generation", "request_id": "r1",
    }  # fmt: skip


def test_overload_and_unreadiness_say_when_to_come_back() -> None:
    for error in (service_errors.NotReady("x"), service_errors.Overloaded(3), index_errors.StoreUnavailable("x")):
        assert int(problems.from_error(error, "r").headers["Retry-After"]) > 0


def test_internal_detail_stays_in_the_log() -> None:
    for error in (RankingError("secret path"), service_errors.InferenceFailed("secret path")):
        response = problems.from_error(error, "r")
        assert response.status_code == 500
        assert b"secret" not in response.body


def test_an_ancestor_speaks_for_its_descendants() -> None:
    class Special(InvalidInput):
        pass

    assert problems.from_error(Special("x"), "r").status_code == 422


def test_a_conflict_links_to_the_job() -> None:
    response = problems.from_error(index_errors.JobConflict("j1"), "r")
    assert _body(response)["job"] == "/index/jobs/j1"
    assert response.headers["Link"].startswith("</index/jobs/j1>")


def test_text_that_is_not_unicode_is_replaced() -> None:
    assert _body(problems.from_error(InvalidInput("bad \ud800 name"), "r"))["detail"] == "bad ? name"
