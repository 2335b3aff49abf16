"""Settings: YAML presets and files under the flags of the command line."""
