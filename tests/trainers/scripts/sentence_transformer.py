"""Trains a small sentence transformer with SentenceTransformerTrainer on pairs, by in-batch negatives."""

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
words = "the a cat dog sees chases likes paints moon harbour and then sleeps runs".split()
vocabulary = {word: number for number, word in enumerate(["<pad>", *words])}
core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", model_max_length=32).save_pretrained("bert")
config = BertConfig(
    vocab_size=len(vocabulary),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
)
BertModel(config).save_pretrained("bert")
encoder = Transformer("bert")
model = SentenceTransformer(modules=[encoder, Pooling(32)], device="cpu").to(torch.get_default_dtype())


def sentences(number):
    picks = torch.randint(len(words), (number, 10)).tolist()
    return [" ".join(words[pick] for pick in row) for row in picks]


data = Dataset.from_dict({"anchor": sentences(32), "positive": sentences(32)})
arguments = SentenceTransformerTrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=4,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
)
print("world size", trainer.args.world_size, trainer.args.parallel_mode)
trainer.train()
for entry in trainer.state.log_history:
    print({key: value for key, value in entry.items() if key in ("loss", "grad_norm", "train_loss")})
print(model.encode(["the cat sleeps", "a dog runs"]).tolist())
model.save("final")
