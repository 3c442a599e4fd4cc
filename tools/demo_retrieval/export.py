"""Write a run's demo pair as it ships: two safetensors files in f16 with EmbeddingRWKV's names, and the tokenizer.

python -m tools.demo_retrieval.export build/demo-retrieval rnn_engine/demo/retrieval
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tools.demo_model.model import shipped_tensors
from tools.demo_model.train import CHECKPOINT
from tools.demo_retrieval.train import PAIR, TOKENIZER, Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run, after both trainings")
    parser.add_argument("folder", type=Path, help="where the files go")
    options = parser.parse_args()
    trainer = Trainer(Tokenizer.from_file(str(options.run / TOKENIZER)), with_reranker=True)
    trainer.model.load_state_dict(torch.load(options.run / PAIR / CHECKPOINT, weights_only=True)["model"])
    options.folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(options.run / TOKENIZER, options.folder / TOKENIZER)
    for name, model in {"demo-embed": trainer.embedding, "demo-rerank": trainer.reranker}.items():
        output = options.folder / f"{name}.safetensors"
        tensors = shipped_tensors(model)
        save_file(tensors, output, metadata={"format": "pt"})
        parameters = sum(value.numel() for value in tensors.values())
        print(f"{parameters} parameters, {output.stat().st_size} bytes -> {output}")


if __name__ == "__main__":
    main()
