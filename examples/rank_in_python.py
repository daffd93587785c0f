"""Rank replies in a notebook or script, without a server.

Usage: python examples/rank_in_python.py [MODEL]
"""

import json
import sys
from pathlib import Path

import polyrank

POOL = Path(__file__).with_name("support") / "pool.jsonl"


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else "sentence-transformers/all-MiniLM-L6-v2"
    replies = [json.loads(line)["text"] for line in POOL.read_text(encoding="utf-8").splitlines()]

    ranker = polyrank.load(base)
    for index, score in ranker.rank(
        ["hi, my parcel is late", "what's the status?", "no news since Monday"], replies, top_k=3
    ):
        print(f"{score:6.2f}  {replies[index]}")


if __name__ == "__main__":
    main()
