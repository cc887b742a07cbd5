"""Models for others than the training script: published while it runs, exported, served read-only.

Needs `pip install 'ronde[serve]'`, which commands see to. Nothing here reads a pickle, but for
`torch.export.load`, see `program`.
"""
