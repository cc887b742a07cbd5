"""Gradient compression: encoding, exchange and averaging of a bucket's gradients."""
