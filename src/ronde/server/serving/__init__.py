"""Serving of models: published while training runs, exported, served read-only.

Needs `pip install 'ronde[serve]'`, which commands check. Nothing here reads a pickle except
`torch.export.load`, see `program`.
"""
