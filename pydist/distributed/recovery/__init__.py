"""Going on after ranks have died: a smaller group, and training steps that happen on all survivors or on none."""
