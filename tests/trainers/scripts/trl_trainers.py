"""Trains a small Llama from its configuration with a trainer of TRL: `sft`, `dpo` or `grpo`."""

import copy
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

torch.manual_seed(0)
words = "the a cat dog sees chases likes paints moon harbour and then sleeps runs".split()
vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", *words])}
core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
config = LlamaConfig(
    vocab_size=len(vocabulary),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=0,
)
model = LlamaForCausalLM(config)


def sentences(number, longest):
    picks = torch.randint(len(words), (number, longest)).tolist()
    lengths = torch.randint(longest // 2, longest, (number,)).tolist()
    return [" ".join(words[pick] for pick in row[:length]) for row, length in zip(picks, lengths)]


settings = dict(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)
if sys.argv[1] == "sft":
    data = Dataset.from_dict({"text": sentences(32, 16)})
    trainer = SFTTrainer(
        model, SFTConfig(max_length=32, **settings), train_dataset=data, processing_class=tokenizer
    )
elif sys.argv[1] == "dpo":
    data = {"prompt": sentences(32, 8), "chosen": sentences(32, 8), "rejected": sentences(32, 8)}
    trainer = DPOTrainer(
        model,
        ref_model=copy.deepcopy(model),
        args=DPOConfig(**settings),
        train_dataset=Dataset.from_dict(data),
        processing_class=tokenizer,
    )
else:

    def names_cats(completions, **_):
        return [text.split().count("cat") - 0.1 * len(text.split()) for text in completions]

    trainer = GRPOTrainer(
        model,
        reward_funcs=names_cats,
        args=GRPOConfig(num_generations=4, max_completion_length=8, **settings),
        train_dataset=Dataset.from_dict({"prompt": sentences(16, 6)}),
        processing_class=tokenizer,
    )
print("world size", trainer.args.world_size, trainer.args.parallel_mode)
trainer.train()
for entry in trainer.state.log_history:
    print(
        {
            key: value
            for key, value in entry.items()
            if not any(word in key for word in ("time", "per_second"))
        }
    )
trainer.save_model("final")
