"""`polyrank build` with a real model: what it makes, and how it ends where it cannot."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import call, ended, forked, left_half_written, pool_rows, write_rows

import polyrank
from polyrank.index_builder.building import pipeline
from polyrank.index_builder.index import choice
from polyrank.index_builder.index.choice import SearchTimes
from polyrank.index_builder.store.generation_store import GenerationStore

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def poly(checkpoints: Path) -> Path:
    return checkpoints / "poly"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pool.jsonl", pool_rows(50))


@pytest.mark.quick
def test_json_tells_what_was_built(capsys: Capture, store: Path, poly: Path, pool: Path) -> None:
    result = call(capsys, "build", "--model", poly, "--pool", pool, "--store", store, "--json").result
    assert result.pop("seconds") > 0
    generation = GenerationStore(store).current()
    assert result == {
        "generation": generation, "count": 50, "rejected": 0, "rejected_log": None, "truncated": 0, "index": "exact",
        "index_times": None, "recall@10": 1.0, "recall_of": "vectors", "resumed": 0, "encoded": 50, "taken": 0,
        "fields": {"n": {"kind": "number", "rows": 50}}, "repeated_texts": 0, "left_out": [],
    }  # fmt: skip
    manifest = GenerationStore(store).verify(str(generation))
    assert (manifest.model.fingerprint, manifest.dtype) == (polyrank.load(poly).fingerprint, "float16")
    assert left_half_written(store) == []


def test_columns_by_other_names(capsys: Capture, store: Path, tmp_path: Path) -> None:
    (tmp_path / "pool.csv").write_text("Nr;Frage;Antwort\n1;Wo?;Hier.\n2;Da?;Hier.\n", "utf-16")
    options = (
        "--model", "lexical", "--pool", tmp_path / "pool.csv", "--store", store, "--columns", "text=Antwort,id=Nr",
    )  # fmt: skip
    told = call(capsys, "build", *options, "--json")
    assert (told.result["count"], told.result["repeated_texts"]) == (2, 1)
    assert told.result["fields"] == {"Frage": {"kind": "text", "rows": 2}}
    assert "1 row repeats a text under another id; all of them are kept" in told.err.splitlines()
    assert {row["id"] for row in call(capsys, "rank", "Wo?", "--store", store, "--json").result["results"]} == {
        "1",
        "2",
    }


def test_words_tell_what_was_built(capsys: Capture, store: Path, poly: Path, pool: Path) -> None:
    outcome = call(capsys, "build", "--model", poly, "--pool", pool, "--store", store)
    assert (outcome.status, outcome.err) == (0, "fields: n (number, 50 rows)\n")
    current = GenerationStore(store).current()
    assert outcome.out.startswith(f"generation {current} is active: 50 candidates in ")
    assert outcome.out.endswith(" s; running servers load it now\n")
    again = call(capsys, "build", "--model", poly, "--pool", pool, "--store", store).out
    kept = "0 texts encoded, 50 candidates keep the vectors that the last generation has"
    assert again.endswith(f" s; {kept}; running servers load it now\n")


def test_auto_tells_what_it_chose_and_by_which_times(capsys, store: Path, poly: Path, pool: Path, monkeypatch) -> None:
    monkeypatch.setattr(choice, "MEASURED_FROM", 50)
    monkeypatch.setattr(pipeline, "time_searches", lambda *_: SearchTimes(9.0, 6.25))
    outcome = call(capsys, "build", "--model", poly, "--pool", pool, "--store", store, "--json")
    assert "auto chose hnsw: for one context the scan takes 9.0 ms, hnsw 6.2 ms of one core" in outcome.err
    times = {"exact_ms": 9.0, "hnsw_ms": 6.25}
    assert (outcome.result["index"], outcome.result["index_times"]) == ("hnsw", times)
    (listed,) = call(capsys, "store", "list", "--store", store, "--json").result["generations"]
    assert listed["index_times"] == times


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_precision_that_was_asked_for_encodes_and_is_recorded(
    capsys: Capture, store: Path, poly: Path, pool: Path, precision: str
) -> None:
    flags = ("--backend", "torch", "--precision", precision, "--dtype", "float32", "--json")
    generation = call(capsys, "build", "--model", poly, "--pool", pool, "--store", store, *flags).result["generation"]
    opened = GenerationStore(store).open(str(generation))
    assert (opened.manifest.backend, opened.manifest.precision) == ("torch", precision)
    ranker = polyrank.load(poly)
    texts = [row.text for row in opened.candidates.rows(range(50))]
    apart = np.abs(opened.embeddings.matrix - ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])).max()
    opened.close()
    assert (apart > 1e-4) == (precision != "float32")


def test_no_activate_publishes_only(capsys: Capture, store: Path, poly: Path, pool: Path) -> None:
    options = ("--model", poly, "--pool", pool, "--store", store, "--no-activate")
    waiting = call(capsys, "build", *options, "--json").result["generation"]
    outcome = call(capsys, "build", *options)
    other = GenerationStore(store).ids()[-1]
    assert outcome.out.startswith(f"generation {other} is published: 50 candidates")
    assert (GenerationStore(store).ids(), GenerationStore(store).current()) == ([waiting, other], None)
    assert call(capsys, "store", "activate", "--store", store, waiting).status == 0
    assert GenerationStore(store).current() == waiting


def test_several_files_dtype_and_index(capsys: Capture, store: Path, poly: Path, pool: Path, tmp_path: Path) -> None:
    table = tmp_path / "more.csv"
    table.write_text("id,text,topic\nd1,w1 w2,late\n")
    options = ("--dtype", "float32", "--index", "flat", "--json")
    result = call(capsys, "build", "--model", poly, "--pool", pool, table, "--store", store, *options).result
    with_index = GenerationStore(store).open(result["generation"])
    assert (with_index.manifest.dtype, with_index.manifest.index.kind, with_index.manifest.count) == (
        "float32", "flat", 51,
    )  # fmt: skip
    assert with_index.candidates.rows([50])[0].metadata == {"topic": "late"}
    with_index.close()


def test_a_csv_as_a_spreadsheet_writes_it(capsys: Capture, store: Path, tmp_path: Path) -> None:
    table = tmp_path / "pool.csv"
    table.write_bytes("ID;Text;Preis;Frei;$x\r\na;größer;5;;1\r\nb;w2;49.9;TRUE;\r\n".encode("windows-1252"))
    asked = ("build", "--model", "lexical", "--pool", table, "--store", store)
    refused = call(capsys, *asked).failure()
    assert "not valid UTF-8; if the whole file is so, name another encoding, such as windows-1252, with" in refused
    assert "--encoding: 'latin-99' is unknown" in call(capsys, *asked, "--encoding", "latin-99").err
    outcome = call(capsys, *asked, "--encoding", "windows-1252")
    assert outcome.err.splitlines() == [
        "fields: Preis (number, 2 rows), Frei (true/false, 1 row)",
        "left out: $x (its name begins with '$', as operators of filters do; 1 row)",
    ]
    current = GenerationStore(store).current()
    assert current is not None
    with_table = GenerationStore(store).open(current)
    assert [(row.id, row.text, row.metadata) for row in with_table.candidates.rows([0, 1])] == [
        ("a", "größer", {"Preis": 5}),
        ("b", "w2", {"Preis": 49.9, "Frei": True}),
    ]
    with_table.close()


def test_the_fields_of_a_pool_in_parts_are_told(capsys: Capture, store: Path, pool: Path) -> None:
    asked = ("build", "--model", "lexical", "--pool", pool, "--store", store, "--shards", "2", "--json")
    outcome = call(capsys, *asked)
    assert outcome.result["fields"] == {"n": {"kind": "number", "rows": 50}}
    assert outcome.err.startswith("fields: n (number, 50 rows)\n")


def test_probes_set_how_hard_an_index_is_searched(capsys, store: Path, poly: Path, pool: Path, tmp_path: Path) -> None:
    probes = write_rows(
        tmp_path / "said.jsonl", [{"context": [f"w{n} w{n + 1}"], "response": "w1"} for n in range(300)]
    )
    options = ("--model", poly, "--pool", pool, "--store", store, "--index", "IVF50,Flat", "--json")
    tuned = call(capsys, "build", *options, "--probes", probes, "--min-recall", "1").result
    manifest = GenerationStore(store).manifest(tuned["generation"])
    assert (tuned["index"], tuned["recall@10"]) == ("custom", 1.0)
    assert (manifest.recall["probes"], manifest.recall["count"], manifest.recall["min_recall"]) == ("given", 256, 1.0)
    assert manifest.index.params["nprobe"] >= 32
    listed = call(capsys, "store", "list", "--store", store).out
    assert "50 candidates, custom (recall@10 of vectors 1.000, probes: given)" in listed


def test_bad_rows_within_the_share_are_left_out_and_listed(capsys, store: Path, poly: Path, tmp_path: Path) -> None:
    rows = [*pool_rows(3), {"id": "c0", "text": "again"}]
    pool = write_rows(tmp_path / "pool.jsonl", rows)
    options = ("--model", poly, "--pool", pool, "--store", store, "--json")
    outcome = call(capsys, "build", *options, "--max-rejected", "0.25")
    log = Path(outcome.result["rejected_log"])
    assert (outcome.result["count"], outcome.result["rejected"]) == (3, 1)
    assert outcome.err == f"rows left out: 1; see {log}\nfields: n (number, 3 rows)\n"
    [bad] = map(json.loads, log.read_text().splitlines())
    assert (bad["file"], bad["line"]) == (str(pool), 4)


def test_ctrl_c_ends_a_building_process_cleanly(warm_python, store: Path, poly: Path, tmp_path: Path) -> None:
    pool = write_rows(tmp_path / "pool.jsonl", pool_rows(60_000))
    process = forked(warm_python, "build", "--model", poly, "--pool", pool, "--store", store)
    deadline = time.monotonic() + 60
    while not list(store.glob("generations/.tmp-*/embeddings.bin")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert ended(process).failure() == "interrupted; nothing was left half-written"
    assert GenerationStore(store).ids() == left_half_written(store) == []
    assert not (store / "CURRENT").exists()
