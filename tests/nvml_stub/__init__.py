"""A ``libnvidia-ml.so.1`` that plays a recorded world: see WORLD.md. ``build`` compiles it, ``world`` drives it."""
