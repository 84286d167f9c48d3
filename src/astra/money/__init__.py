"""Prices, goodput, dollars and hours: columns in, columns out. No plan is chosen here."""
