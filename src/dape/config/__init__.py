"""Settings from YAML: presets and files, which flags override."""
