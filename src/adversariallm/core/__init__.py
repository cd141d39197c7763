"""Plain data and protocols that every layer shares; importing it does not import torch."""
