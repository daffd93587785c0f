"""What one would write without polyrank: FastAPI, sentence-transformers in OpenVINO and a flat FAISS index.

    POOL=texts.json VECTORS=vectors.npy MODELS=DIR uvicorn benchmarks.peers.fastapi_app:app

POOL is a list of texts, VECTORS their embeddings (N, D).
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from benchmarks.peers.st_worker import openvino
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

texts = json.loads(Path(os.environ["POOL"]).read_text())
vectors = np.load(os.environ["VECTORS"]).astype(np.float32)
index = faiss.IndexFlatIP(vectors.shape[1])
index.add(vectors)
models = Path(os.environ["MODELS"])
kind = partial(SentenceTransformer, trust_remote_code=False)
encoder = openvino(kind, models / "encoder", models / "encoder-openvino")
encoder.encode("warm")
app = FastAPI()


class Request(BaseModel):
    """A context, and how many replies to return."""

    context: str
    top_k: int = 10


@app.post("/rank")
def rank(request: Request) -> dict[str, Any]:
    """Return the replies whose embeddings are nearest to that of the context."""
    vector = encoder.encode([request.context], normalize_embeddings=True)
    [scores], [rows] = index.search(vector, request.top_k)
    found = zip(rows.tolist(), scores.tolist(), strict=True)
    return {"results": [{"id": row, "text": texts[row], "score": score} for row, score in found]}


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}
