"""The parts of the scripts: recipes, data, augmentation, optimiser, schedule, metrics, run folder."""
