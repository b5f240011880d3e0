"""Training by stochastic gradients on fresh draws."""
