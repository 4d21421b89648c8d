"""The live dashboard of training runs in a terminal."""
