"""A loop with Accelerator, in the manner of accelerate's nlp_example.py."""

from trainers.row import Row

ROW = Row(
    title="accelerate `Accelerator`, a loop",
    packages=("accelerate==1.15.0", "transformers==5.23.0"),
    script="accelerate_nlp.py",
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "divided"},
    start="`ronde run` in place of `accelerate launch`, whose words it reads.",
)
