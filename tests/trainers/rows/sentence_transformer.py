"""The trainer of sentence-transformers with a BERT and in-batch negatives."""

from trainers.row import Row

ROW = Row(
    title="sentence-transformers `SentenceTransformerTrainer`",
    packages=("sentence-transformers==6.2.0", "transformers==5.23.0", "datasets==5.2.0"),
    script="sentence_transformer.py",
    expected={"ddp": "parts", "zero3": "parts", "tensor=2": "divided"},
    because="each module puts its result into the dictionary that it is given, and the loss compares rows "
    "with one another; inside, `BertEncoder` is one piece.",
)
