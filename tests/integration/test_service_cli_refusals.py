"""Bad input, as a table: each line is refused with one message, before torch is imported or anything is written."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import ended, pool_rows, write_rows
from service_fakes import build_store, pool
from warm_python import WarmPython

import polyrank

pytestmark = pytest.mark.quick

CODE = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from polyrank.service.cli import main

class had_torch:
    value = False

def files():
    paths = (os.path.join(folder, name) for folder, folders, names in os.walk(".") for name in (*folders, *names))
    return {path: os.lstat(path).st_mtime_ns for path in paths}

def run(line):
    before = files()
    os.environ.update(given := dict(word.split("=", 1) for word in line if word.startswith("POLYRANK_")))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([word for word in line if word not in {"=".join(pair) for pair in given.items()}])
        except SystemExit as end:
            status = end.code
    for name in given:
        del os.environ[name]
    had, had_torch.value = had_torch.value, "torch" in sys.modules
    written = sorted(set(files().items()) - set(before.items()))
    return status, out.getvalue(), err.getvalue(), had_torch.value and not had, written

os.chdir(sys.argv[1])
for name in ("COMPILED_CACHE_MB", "BACKEND", "PRECISION"):
    os.environ.pop("POLYRANK_" + name, None)
json.dump([run(line) for line in json.loads(sys.argv[2])], sys.stdout)
"""

# What every line of a command begins with; FILES are in the folder that `files` makes.
BUILD = "build --model poly --pool pool.jsonl --store new"
EVALUATE = "evaluate --model poly --data data.jsonl"
MINE = "mine --model poly --data data.jsonl --pool pool.jsonl --output out.jsonl"
TRAIN = "train --architecture poly --base poly --train data.jsonl --output out"
KEYS = "keys add --file keys.json --name"
BEIR = "evaluate --model poly --corpus pool.jsonl --queries pool.jsonl --qrels pool.jsonl"

# exit status | command line; of an option given twice the last one counts | what the last line on standard error holds
TABLE = f"""
2 |                                    | the following arguments are required: COMMAND
2 | frobnicate                         | invalid choice: 'frobnicate' (choose from 'demo'
2 | store                              | the following arguments are required: ACTION
2 | store list                         | the following arguments are required: --store
2 | store activate --store store       | the following arguments are required: generation
2 | store gc --store store --keep many | --keep: must be a whole number from 1 to 10,000, not 'many'
2 | build --model m --store s          | the following arguments are required: --pool
2 | {BUILD} --min-recall 2             | --min-recall: must be a number from 0 to 1, not '2'
2 | {BUILD} --max-rejected nan         | --max-rejected: must be a number from 0 to 1, not 'nan'
2 | quantise --model poly              | the following arguments are required: --data
2 | quantise --model none --data data.jsonl | --model none is no checkpoint; give the directory of one
2 | quantise --model poly-base --data data.jsonl | --model poly-base is no checkpoint; give the directory of one
2 | quantise --model generations/1/model --data data.jsonl | is a generation's own copy, whose files never change
2 | quantise --model words --data data.jsonl | ranks by words alone; there is no transformer to quantise
2 | quantise --model poly --data data.jsonl --lists 0 | --lists: must be a whole number from 1 to 1,000,000, not '0'
2 | {BUILD} --dtype int8               | --dtype: invalid choice: 'int8'
2 | {BUILD} --engine ray               | unrecognized arguments: --engine ray
2 | rank                               | the following arguments are required: TURN
2 | rank hi --top-k 1001               | --top-k: must be a whole number from 1 to 1,000, not '1001'
2 | rank hi --url u --store s          | --store: not allowed with argument --url
2 | rank hi --topk 3                   | unrecognized arguments: --topk 3; did you mean --top-k?
2 | serve --vectors disk               | --vectors: invalid choice: 'disk'
2 | keys list --file f --jsn           | did you mean --json?
2 | rank hi --top-k many               | --top-k: must be a whole number from 1 to 1,000, not 'many'
2 | rank hi --pool pool.jsonl          | unrecognized arguments: --pool pool.jsonl (see polyrank rank --help)
2 | build --pool p --store s           | the following arguments are required: --model
2 | train --architecture bi --output o --base b | the following arguments are required: --train
2 | train --architecture poli --train d --output o | did you mean poly?
2 | export none --to onnx --output o   | --to: invalid choice: 'onnx' (choose from 'sentence-transformers')
2 | keys add --name me                 | the following arguments are required: --file
2 | keys add --file k --name me --scope root | --scope: invalid choice: 'root'
2 | serve --port 99999                 | --port: must be a whole number from 0 to 65,535, not '99999'
2 | store gc --store ""                | --store: must not be empty
2 | candidates delete a --url=          | --url: must not be empty
2 | {EVALUATE} --against ""             | --against: must not be empty
2 | convert "" --output new             | must not be empty
2 | bild                               | did you mean build?
2 | store lst                          | did you mean list?

1 | {BUILD} --pool none.jsonl                            | none.jsonl: no such file
1 | {BUILD} --pool empty.jsonl                           | empty.jsonl: the pool holds no candidate
1 | {BUILD} --pool broken.jsonl.gz                       | broken.jsonl.gz: cannot be read
1 | {BUILD} --pool pool.txt                              | pool.txt: unknown kind of pool; use one of .jsonl, .jsonl.gz
1 | {BUILD} --pool table.csv                             | table.csv: there is no column 'text'
1 | {BUILD} --model no-model                             | model 'no-model' is neither a local directory
1 | {BUILD} --model store                                | store is no model
2 | {BUILD} --model cross                                | cross is a cross-encoder, which has no candidate embeddings;
2 | {BUILD} --store poly                                 | --store poly is a checkpoint; give another directory
1 | {BUILD} --store pool.jsonl                           | Not a directory: pool.jsonl
1 | {BUILD} --probes none.jsonl                          | none.jsonl: no such file
2 | {BUILD} --probes empty.jsonl                         | --probes empty.jsonl holds no dialogue
1 | {BUILD} --probes pool.jsonl                          | pool.jsonl:1:
2 | {BUILD} --model lexical --index hnsw                 | lexical has no vectors to index, its words are; leave --index
2 | {BUILD} --columns Antwort                            | argument --columns: 
2 | {BUILD} --columns text=                              | argument --columns: 
2 | {BUILD} --columns body=b                             | argument --columns: 
2 | {BUILD} --columns text=a,text=b                      | argument --columns: 
2 | {BUILD} --columns text=a,id=a                        | argument --columns: 
2 | {BUILD} --columns =a                                 | argument --columns: 
2 | {BUILD} --no-activate --wait http://127.0.0.1:9      | --wait goes with --activate
2 | {BUILD} --encoders 2                                 | --cluster and --encoders go together
2 | {BUILD} --backend torch --precision int8             | torch does not compute in int8; use openvino or auto

1 | {EVALUATE} --model no-model                            | model 'no-model' is neither a local directory
1 | {EVALUATE} --model store                               | store is no model
1 | {EVALUATE} --data none.jsonl                           | none.jsonl: no such file
1 | {EVALUATE} --data pool.txt                             | pool.txt: unknown kind of file; use one of .jsonl,
1 | {EVALUATE} --pool none.jsonl                           | none.jsonl: no such file
1 | {EVALUATE} --pool empty.jsonl                          | empty.jsonl: the pool holds no candidate
2 | {EVALUATE} --pool pool.jsonl --model cross             | no candidate embeddings; give a
2 | {EVALUATE} --pool pool.jsonl --against cross           | and this one as --reranker
2 | {EVALUATE} --pool pool.jsonl --reranker poly           | --reranker poly is a poly-encoder; give a cross- or uni-enc
1 | {EVALUATE} --pool pool.jsonl --reranker none           | model 'none' is neither a local directory
2 | {EVALUATE} --pool pool.jsonl --top-n 5                 | --top-n goes with --reranker
2 | {EVALUATE} --reranker r                                | --reranker needs --pool or --corpus; to rank each example's
2 | {EVALUATE} --queries q                                 | --queries and --qrels go with --corpus, not with --data
2 | {EVALUATE} --qrels q                                   | --queries and --qrels go with --corpus, not with --data
2 | {EVALUATE} --encoding latin-1                          | --encoding goes with --pool
2 | {EVALUATE} --draw 1                                    | --draw must be 0, or 2 to 1000
2 | {EVALUATE} --draw 5 --pool pool.jsonl                  | --draw and --seed go with --data alone
2 | {EVALUATE} --output store                              | --output store is a directory; name a file
2 | {EVALUATE} --output none/out                           | --output none/out: there is no directory none
2 | {EVALUATE} --output data.jsonl                         | --output data.jsonl is an input too; name another file
2 | {EVALUATE} --output link.jsonl --pool pool.jsonl       | --output link.jsonl is an input too; name another file
2 | {EVALUATE} --report data.jsonl                         | --report data.jsonl is an input too; name another file
2 | {EVALUATE} --report x --output x                       | --output and --report are one file; name two
2 | {EVALUATE} --backend torch --precision int8            | torch does not compute in int8; use openvino or auto
2 | evaluate --model m                                     | one of the arguments --data --corpus is required
2 | {EVALUATE} --corpus c                                  | --corpus: not allowed with argument --data
2 | evaluate --model m --corpus c --queries q              | --corpus needs both --queries and --qrels
2 | evaluate --model m --corpus c --qrels q                | --corpus needs both --queries and --qrels
2 | {BEIR} --pool pool.jsonl                               | --pool goes with --data, not with --corpus
2 | {BEIR} --model cross                                   | no candidate embeddings; give a
2 | {BEIR} --output link.jsonl                             | --output link.jsonl is an input too; name another file
1 | {BEIR} --corpus none                                   | none: no such file
1 | {BEIR} --queries none                                  | none: no such file
1 | {BEIR} --qrels none                                    | none: no such file

1 | {MINE} --data none.jsonl       | none.jsonl: no such file
1 | {MINE} --pool none.jsonl       | none.jsonl: no such file
1 | {MINE} --model none.jsonl      | none.jsonl
1 | {MINE} --check none.jsonl      | none.jsonl
1 | {MINE} --output out.txt        | out.txt: unknown kind of file
1 | {MINE} --data empty.jsonl      | empty.jsonl holds no example; there is nothing to mine for
1 | {MINE} --data classes.jsonl    | classes.jsonl:1: its label is a class; mine for examples of right
1 | {MINE} --data pool.jsonl       | pool.jsonl: too many bad lines: 0 examples; 3 dropped:
2 | {MINE} --model cross           | cross is a cross-encoder, which has no candidate embeddings; give a
2 | {MINE} --check poly            | --check poly is a poly-encoder; give a cross- or uni-encoder
2 | {MINE} --check-margin 1        | --check-margin needs --check
2 | {MINE} --skip 9 --depth 9      | --skip must be less than --depth, or no text is left
2 | {MINE} --skip -1               | --skip: must be a whole number from 0 to
2 | {MINE} --negatives 0           | --negatives: must be a whole number from 1 to
2 | {MINE} --margin 1.5            | must be a number from 0 to 1, not '1.5'; or off
2 | {MINE} --output data.jsonl     | --output data.jsonl is an input too; name another file
2 | {MINE} --output link.jsonl     | --output link.jsonl is an input too; name another file
2 | {MINE} --output store          | --output store is a directory; name a file
2 | {MINE} --output none/out.jsonl | --output none/out.jsonl: there is no directory none

1 | {TRAIN} --train none.jsonl                        | none.jsonl: no such file
2 | {TRAIN} --valid none.jsonl                        | --valid: none.jsonl: no such file
2 | {TRAIN} --valid lonely.jsonl                      | --valid: no example has `candidates`, and the file has no wrong
1 | {TRAIN} --base none                               | model 'none' is neither a local directory
2 | {TRAIN} --base lexical                            | it has no network to train; fit its words by
1 | {TRAIN} --teacher none                            | model 'none' is neither a local directory
2 | {TRAIN} --teacher lexical                         | give a model with a network as the teacher
2 | {TRAIN} --teacher poly-base                       | --teacher poly-base is a base model, which has not learnt to
2 | {TRAIN} --words none                              | --words none is no checkpoint whose words count; give another
2 | {TRAIN} --words poly                              | --words poly is no checkpoint whose words count; give another
2 | {TRAIN} --architecture cross --retriever cross    | cross is a cross-encoder, which has no candidate embeddings;
2 | {TRAIN} --architecture lexical                    | fit its words by --only-evidence --base lexical
2 | {TRAIN} --architecture tri                        | --architecture: invalid choice: 'tri'
2 | {TRAIN} --steps many                              | --steps: must be a whole number from 1 to
2 | {TRAIN} --loss pointwise                          | loss is for cross
2 | {TRAIN} --first-stage x                           | first-stage is for cross
2 | {TRAIN} --batch-size 1                            | the others are the negatives
2 | {TRAIN} --tune bogus                              | tune is 'bogus'; give all, all-but-embeddings or top-N
2 | {TRAIN} --recipe mixencoder2022                   | recipe mixencoder2022 is for mix, not for poly
2 | {TRAIN} --weights 1 2                             | 2 weights for 1 files; give one each
2 | {TRAIN} --seen                                    | --seen goes with --only-evidence or --only-calibration
2 | {TRAIN} --public                                  | --public goes with --push-to-hub
2 | {TRAIN} --push-to-hub chat                        | give the repository as OWNER/NAME
2 | {TRAIN} --architecture cross --retriever lexical  | virt-encoder as --retriever
2 | train --base poly --train data.jsonl --output out | give --architecture: bi, colbert, deformer, mix, poly, virt,

2 | feedback export --store none --output new          | none is no directory; polyrank build makes a store
2 | feedback export --store store --output pool.jsonl  | --output pool.jsonl is not an empty directory
1 | feedback export --store store --output new         | store has no recorded rankings; polyrank serve --feedback
2 | feedback report --store store --output new/x.html  | --output new/x.html: there is no directory new

2 | serve                                  | --store DIR or POLYRANK_STORE
2 | serve --store store --keys-file none   | keys_file: none cannot be read: No such file or directory
2 | serve --store none                     | none is no directory; polyrank build makes a store
2 | serve --store store --vectors redis    | --redis URL
2 | serve --store store --redis foo://x    | must begin with redis://
2 | serve --store store --reranker poly    | poly is a poly-encoder; give a cross- or uni-encoder
1 | serve --store store --reranker none    | model 'none' is neither a local directory
2 | serve --store store --backend torch --precision int8 | torch does not compute in int8; use openvino or auto
2 | serve --store store POLYRANK_PROT=1    | unknown setting in the environment: POLYRANK_PROT; did you mean POLYR
2 | demo --once POLYRANK_PROT=1            | unknown setting in the environment: POLYRANK_PROT; did you mean POLYR
2 | rank w1 --store none                   | none is no directory; polyrank build makes a store
1 | rank w1 --store store                  | no good generation in store: it is empty
2 | rank w1 --store store --rerank         | --rerank with --store needs --reranker MODEL
2 | rank w1 --store store --reranker poly  | --reranker poly is a poly-encoder; give a cross- or uni-encoder
1 | rank w1 --store store --reranker none  | model 'none' is neither a local directory
2 | rank w1 --reranker x                   | --reranker goes with --store; a service has its own
2 | rank w1 --store store --api-key secret | --api-key goes with a service, not with --store
2 | rank w1 --api-key secrét               | the API key (--api-key or POLYRANK_API_KEY) has characters that no
2 | rank w1 --url localhost:8000           | --url localhost:8000: begin it with http:// or https://
1 | rank hi --url http://127.0.0.1:1       | no answer ([Errno 111] Connection refused); is polyrank serve running?
1 | candidates get c1 --url http://127.0.0.1:1 | no answer ([Errno 111] Connection refused); is polyrank serve running?
2 | export none --to sentence-transformers --output o | none is no checkpoint directory; export what
1 | store activate --store built yesterday | 'yesterday' is not the id of a generation; polyrank store list shows them
1 | store rollback --store built           | no earlier generation to roll back to in built
2 | store list --store pool.jsonl          | pool.jsonl is no directory; polyrank build makes a store
2 | candidates put                         | give either pool files or --text
2 | candidates put pool.jsonl --text a     | give either pool files or --text
2 | candidates put pool.jsonl --id x       | --id and --metadata go with --text
2 | candidates put --text a --columns text=b | --encoding and --columns go with files
2 | candidates put --text a --metadata []  | --metadata must be a JSON object
2 | candidates put --text a --metadata '{{"n": 1e999}}' | --metadata is no JSON (NaN, infinite numbers
2 | candidates list --filter lang=en       | --filter is no JSON
2 | candidates list --filter '{{"n": NaN}}' | --filter is no JSON (NaN, infinite numbers
2 | store gc --store store --keep 0        | --keep: must be a whole number from 1 to 10,000, not '0'
2 | store backup --store data.jsonl --to b | data.jsonl is no directory; polyrank build makes a store
1 | store backup --store store --to b      | is active
2 | store backup --store store --to no/b   | there is no directory no
2 | store backup --store store --to - --json | without --json
1 | store restore --from none --store new  | No such file
2 | store restore --from data.jsonl --store poly | --store poly is not an empty directory; name another one
2 | feedback status --store none           | none is no directory
2 | feedback erase --store none --conversation a | none is no directory

2 | convert none --output new              | none: no such file
2 | convert data.jsonl                     | --output
2 | convert data.jsonl --output poly       | not an empty directory
2 | convert data.jsonl --output new --columns who= | 'who' must be a key of a map
2 | convert data.jsonl --output new --from word | --from word: there is no such map, but argilla,
2 | convert data.jsonl --output new --from openai --map pool.jsonl | two maps
2 | convert data.jsonl --output new --first-asks --answering x | two things
2 | convert data.jsonl --output new --min-count 0 | --min-count: must be

2 | {KEYS} "a b"                          | --name: up to 64 letters, digits, dots, hyphens and underscores
2 | {KEYS} ""                             | --name: must not be empty
2 | {KEYS} a --rate 0                     | --rate: must be a number from
2 | {KEYS} a --rate nan                   | --rate: must be a number from
2 | {KEYS} a --rate 1 --burst 0           | --burst: must be a whole number from 1 to
2 | {KEYS} a --burst 1                    | --burst goes with --rate
1 | keys add --file none/keys --name a    | No such file or directory: 
2 | keys list --file none/keys            | cannot be read
2 | keys remove --file none/keys --name a | none/keys is no file; polyrank keys add makes one
2 | keys list --file data.jsonl           | is no keys file
2 | {KEYS} a --file data.jsonl            | is no keys file
"""
# Exit status, standard output and error, whether it has imported torch, files it has written with their times.
Told = tuple[int, str, str, bool, list[tuple[str, int]]]
ROWS = [[part.strip() for part in row.split("|", 2)] for row in TABLE.splitlines() if row]


@pytest.fixture(scope="module")
def files(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good files, of files that are none, of models, of an empty store, and of one of a generation."""
    folder = tmp_path_factory.mktemp("files")
    dialogue = {"context": ["w1"], "response": "w2"}
    write_rows(folder / "pool.jsonl", pool_rows(3))
    write_rows(folder / "data.jsonl", [{**dialogue, "candidates": ["w2", "w3"]}])
    write_rows(folder / "lonely.jsonl", [dialogue])
    write_rows(folder / "classes.jsonl", [{"context": ["w1"], "label": "a"}])
    write_rows(folder / "empty.jsonl", [])
    (folder / "broken.jsonl.gz").write_bytes(b"w1\n")
    (folder / "pool.txt").write_bytes(b"w1\n")
    (folder / "table.csv").write_bytes(b"a,b\n1,2\n")
    (folder / "link.jsonl").symlink_to("pool.jsonl")
    (folder / "store").mkdir()
    build_store(folder / "built", pool(5))
    for model in ("poly", "cross", "poly-base"):
        (folder / model).symlink_to(checkpoints / model)
    polyrank.load("lexical").save(folder / "words")
    shutil.copytree(checkpoints / "poly", folder / "generations/1/model")
    (folder / "generations/1/manifest.json").write_bytes(b"{}")
    return folder


def last_of_each(words: list[str]) -> list[str]:
    """Leave out options, with their value, that are given again: what a row says instead of its command's beginning."""
    again = {at for at, word in enumerate(words) if word.startswith("--") and word in words[at + 1 :]}
    return [word for at, word in enumerate(words) if at not in again and at - 1 not in again]


@pytest.fixture(scope="module")
def told(light_python: WarmPython, files: Path) -> list[Told]:
    """How each line ended; all in one process."""
    lines = json.dumps([last_of_each(shlex.split(line)) for _, line, _ in ROWS])
    status, out, err = ended(light_python.start("-c", CODE, files, lines))
    assert status == 0, err
    found: list[Told] = json.loads(out)
    return found


@pytest.mark.parametrize(("at", "row"), list(enumerate(ROWS)), ids=[line for _, line, _ in ROWS])
def test_a_line_is_refused(told: list[Told], at: int, row: list[str]) -> None:
    status, out, err, has_torch, written = told[at]
    last = err.splitlines()[-1]
    assert (f"{status}", out, has_torch) == (row[0], "", False), err
    assert row[2] in last
    assert last.startswith("polyrank")
    assert not written
    if err.startswith("usage: "):
        assert re.fullmatch(r"(polyrank[a-z ]*): error: .* \(see \1 --help\)", last), "the command's own help is named"
    else:
        told_late = [line for line in err.splitlines() if not line.startswith("at work: ")]  # where all else is slow
        assert told_late == [last]
