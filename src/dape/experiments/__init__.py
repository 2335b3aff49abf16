"""Many runs side by side, each a process of its own in a folder of its own."""
