"""`ronde bench parallel`: a model under each mesh of a few ranks."""
