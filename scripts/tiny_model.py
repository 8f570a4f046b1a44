"""Makes a tiny Llama with random weights and a byte-level tokenizer. Usage: tiny_model.py DIR"""
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    text = ["Answer with facts about the order, the refund and the shipping policy of the sales event."] * 50
    with open(__file__, encoding="utf-8") as f:
        text += [f.read()] * 5
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(text, trainers.BpeTrainer(vocab_size=2000, special_tokens=special, initial_alphabet=alphabet))
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    return fast


def main(out):
    fast = tokenizer()
    fast.save_pretrained(out)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(fast), hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32768, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(out)


main(sys.argv[1])
