"""Pictures of the pipeline."""
