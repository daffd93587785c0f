"""Play the agents of a shop whose customers write in codes that no model has read (docs/how-to/learn-from-use.md).

The agent takes the server's first reply where it is right, and otherwise writes what the code asks for.

Usage: python examples/play_agents.py [URL] [CONVERSATIONS]
"""

import json
import random
import sys
from pathlib import Path

import polyrank

POOL = Path(__file__).with_name("support") / "pool.jsonl"
CODES = {
    "WIS": "late-01",
    "RTW": "return-01",
    "RFD": "refund-01",
    "DOA": "damaged-01",
    "GCB": "gift-01",
    "PWL": "login-01",
    "ADC": "address-01",
    "INV": "invoice-01",
    "OOS": "stock-01",
    "EUX": "abroad-01",
    "SUB": "sub-01",
    "LPT": "points-01",
}
OPENINGS = ("hi, code {}", "{} please", "it says {} here", "my app shows {}", "{}, what now?", "hello! {} again")


def main() -> None:
    url, count = (*sys.argv[1:], *("http://127.0.0.1:8000", "800")[len(sys.argv) - 1 :])
    rows = map(json.loads, POOL.read_text(encoding="utf-8").splitlines())
    texts = {row["id"]: row["text"] for row in rows}
    draw, first_was_right = random.Random(), 0
    with polyrank.Client(url) as client:
        for number in draw.sample(range(10_000, 100_000), int(count)):
            code, right = draw.choice([*CODES.items()])
            said = f"{draw.choice(OPENINGS).format(code)}, order {number}"
            ranking = client.rank(said, top_k=5, conversation=f"chat {number}")
            is_right = ranking.results[0].id == right
            first_was_right += is_right
            sent = {"kind": "chosen", "id": right} if is_right else {"kind": "written", "text": texts[right]}
            events = [sent, {"kind": "resolved"}]
            client.feedback_batch([{"ranking_id": ranking.ranking_id, **event} for event in events])
    print(f"the first reply was right in {first_was_right} of {count} conversations")


if __name__ == "__main__":
    main()
