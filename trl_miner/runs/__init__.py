"""The files of a run folder, a comparison and an evaluation: one module each, with its schema,
writer and reader."""
