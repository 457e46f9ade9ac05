"""Writes a Llama with seeded random weights: `write_model.py FOLDER SHAPE`, SHAPE a JSON object.

Run by the Python of the vLLM environment. The same shape gives the same bytes. Its tokenizer has one word a
token (t0, t1, ...), so that every token has a text of its own; nothing is downloaded.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write_model(folder: Path, shape: dict[str, Any]) -> None:
    """Write weights, config and tokenizer of a declared shape into a folder."""
    torch.manual_seed(shape["seed"])
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        max_position_embeddings=shape["max_position_embeddings"],
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = models.WordLevel({f"t{number}": number for number in range(shape["vocab_size"])}, unk_token="t2")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="t0", eos_token="t1", unk_token="t2"
    ).save_pretrained(folder)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), json.loads(sys.argv[2]))
