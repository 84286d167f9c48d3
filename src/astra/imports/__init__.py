"""Existing jobs read back: launch scripts and configurations as plans. Nothing is executed."""
