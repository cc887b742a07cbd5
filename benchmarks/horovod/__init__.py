"""Operations of Horovod's interface beside ronde's collectives and Gloo's."""
