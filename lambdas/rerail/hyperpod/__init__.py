"""HyperPod clusters: their events, and what people are told of them."""
