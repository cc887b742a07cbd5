"""Trains a small GPT-2 or Llama with Trainer and the collator for causal language models."""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

torch.manual_seed(0)
words = "the a cat dog sees chases likes paints moon harbour and then sleeps runs".split()
vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", *words])}
core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
picks = torch.randint(len(words), (40, 16)).tolist()
lengths = torch.randint(6, 16, (40,)).tolist()
texts = [" ".join(words[pick] for pick in row[:length]) for row, length in zip(picks, lengths)]
data = [tokenizer(text) for text in texts]
if sys.argv[1] == "gpt2":
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
    )
    model = GPT2LMHeadModel(config)
else:
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=5,
    learning_rate=1e-3,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=5,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=data[:32],
    eval_dataset=data[32:],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
print("world size", trainer.args.world_size, trainer.args.parallel_mode)
trainer.train()
for entry in trainer.state.log_history:
    print({key: value for key, value in entry.items() if "loss" in key or key == "grad_norm"})
trainer.save_model("final")
