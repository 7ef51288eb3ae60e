"""Speed and memory, measured as ratios or against a stated bar."""
