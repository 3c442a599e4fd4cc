"""Write a run's demo pair as it ships: two safetensors files in f16 with EmbeddingRWKV's names, and the tokenizer.

python -m tools.demo_retrieval.export build/demo-retrieval rnn_engine/demo/retrieval
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tools.demo_model.model import shipped_tensors
from tools.demo_model.train import CHECKPOINT
from tools.demo_retrieval.train import PAIR, TOKENIZER, Trainer


def main(run: Path, folder: Path) -> None:
    """Export a run after both trainings."""
    trainer = Trainer(Tokenizer.from_file(str(run / TOKENIZER)), with_reranker=True)
    trainer.model.load_state_dict(torch.load(run / PAIR / CHECKPOINT, weights_only=True)["model"])
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / TOKENIZER, folder / TOKENIZER)
    for name, model in {"demo-embed": trainer.embedding, "demo-rerank": trainer.reranker}.items():
        output = folder / f"{name}.safetensors"
        tensors = shipped_tensors(model)
        save_file(tensors, output, metadata={"format": "pt"})
        parameters = sum(value.numel() for value in tensors.values())
        print(f"{parameters} parameters, {output.stat().st_size} bytes -> {output}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
