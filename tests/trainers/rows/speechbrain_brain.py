"""A Brain of SpeechBrain."""

from trainers.row import Row

ROW = Row(
    title="SpeechBrain's `Brain.fit`",
    packages=("speechbrain==1.1.2",),
    script="speechbrain_brain.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
