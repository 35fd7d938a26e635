"""The supervisor: observes a run, decides, records the decision and acts."""
