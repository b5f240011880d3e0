"""What all estimators share: parts, a model, a fit, its attributes and queries."""
