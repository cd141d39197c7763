"""Things that answer: model cards, loading, probing, local, remote and metered models, and fakes."""
