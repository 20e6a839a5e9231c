"""How fast and how right: timings of models on standard systems, and recipes run again beside their recorded errors."""
