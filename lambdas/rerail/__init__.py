"""The core that thinks: standard library only, no clock, no environment, no AWS."""
