"""What drives: command line, config, plan, Lab, fleet, progress."""
