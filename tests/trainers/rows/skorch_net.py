"""skorch's classifier, fitted on arrays."""

from trainers.row import Row

ROW = Row(
    title="skorch's `NeuralNetClassifier`",
    packages=("skorch==1.4.0",),
    script="skorch_net.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "replicated"},
    because="`tensor` finds no pair of matrices in layers that are named `dense` and `output`.",
)
