#!/bin/sh
# Four calls to a running polyrank (`make demo` or `docker compose up`).
# Usage: [POLYRANK_API_KEY=KEY] examples/quickstart.sh [URL]; a server with keys wants one with the scope admin
set -eu
url="${1:-http://127.0.0.1:8000}"

call() {
    curl --fail-with-body --silent --show-error --max-time 30 \
        ${POLYRANK_API_KEY:+-H "Authorization: Bearer $POLYRANK_API_KEY"} "$@"
    echo
}

echo "== the best replies of the whole pool"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": ["hi, my parcel is late", "Sorry! What does the tracking say?", "delivered, but there is nothing here"],
  "top_k": 3
}'

echo "== the same, its first twenty read again by the cross-encoder"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": ["hi, my parcel is late", "Sorry! What does the tracking say?", "delivered, but there is nothing here"],
  "top_k": 3, "rerank": {"top_n": 20}
}'

echo "== the best of the candidates sent along"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": "can I come by at half past eight?",
  "persona": ["The shop opens at 9."],
  "candidates": ["We open at nine on weekdays.", "The jacket runs small.", {"id": "refund-01"}]
}'

echo "== what is being served"
call "$url/index"
