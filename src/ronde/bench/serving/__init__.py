"""`ronde bench serving`: how long an answer takes, and how old it is, while the model is trained."""
