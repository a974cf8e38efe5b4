"""Pictures of a run. Reads run folders alone: no model, no trainer."""
