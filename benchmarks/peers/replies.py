"""Write a pool of the distinct replies of dialogues, in order of first appearance.

python -m benchmarks.peers.replies F [F...] --output POOL.jsonl
"""

import argparse
import json
import sys
from pathlib import Path

from polyrank.model.text.dialogues import read_dialogues


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dialogues", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    texts = dict.fromkeys(each.response.strip() for file in options.dialogues for each in read_dialogues(file))
    with options.output.open("w") as out:
        out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    print(f"{len(texts)} replies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
