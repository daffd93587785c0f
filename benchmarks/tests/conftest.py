"""The environment of all tests in this folder."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: no test may ask the network for a model
os.environ |= {"POLYRANK_BACKEND": "torch", "POLYRANK_PRECISION": "float32"}  # no process measures others first
