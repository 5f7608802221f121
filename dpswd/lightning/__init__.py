"""Lightning modules, callbacks and command line for networks that are trained by DP-SWD."""
