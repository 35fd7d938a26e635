"""HyperPod clusters: their events, and the notices about them."""
