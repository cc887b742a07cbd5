#!/bin/sh
# A job of a Ray cluster. The cluster's image has torch and ronde[ray,metrics]; the working directory travels.
# RAY_ADDRESS: of the dashboard, http://HEAD:8265
exec ray job submit --working-dir . -- \
  ronde run --ray auto --checkpoint /shared/saved --resume --restarts 10 --metrics 0.0.0.0:9464 train.py
