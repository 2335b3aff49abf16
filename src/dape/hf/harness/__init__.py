"""Models through lm-evaluation-harness: its own measuring of ours and of adapted ones. Needs the extra ``harness``."""
