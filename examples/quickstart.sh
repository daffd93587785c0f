#!/bin/sh
# Six calls to a running polyrank (`make demo` or `docker compose up`).
# Usage: [POLYRANK_API_KEY=KEY] examples/quickstart.sh [URL]; a server with keys wants one with the scope admin
set -eu
url="${1:-http://127.0.0.1:8000}"

call() {
    curl --fail-with-body --silent --show-error --max-time 30 \
        ${POLYRANK_API_KEY:+-H "Authorization: Bearer $POLYRANK_API_KEY"} "$@"
    echo
}

echo "== the best replies of the whole pool, and whether the first one is an answer"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": ["Hi, my parcel is late.", "Sorry to hear that. Has the tracking moved?",
              "No, it has said the same for five days."],
  "top_k": 3, "answer_if": 0.5
}'

echo "== the same for something that no reply answers: decision.answer is false"
call "$url/rank" -H 'Content-Type: application/json' -d '{"context": "asdf qwer", "top_k": 3, "answer_if": 0.5}'

echo "== a question whose first reply does not answer it"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": "When does my husband\u0027s order come? He bought me something, I think, his number is 55871.",
  "top_k": 2
}'

echo "== the same, its first twenty read again by the reranker, which puts the answer first"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": "When does my husband\u0027s order come? He bought me something, I think, his number is 55871.",
  "top_k": 2, "rerank": {"top_n": 20}
}'

echo "== the best of the candidates sent along; persona is what the replying side knows"
call "$url/rank" -H 'Content-Type: application/json' -d '{
  "context": "can I come by at half past eight?",
  "persona": ["The shop opens at 9."],
  "candidates": ["We open at nine on weekdays.", "The jacket runs small.", {"id": "refund-01"}]
}'

echo "== what is being served"
call "$url/index"
