"""The tuner: which config of a product is fastest on a GPU, found by trying. `laneloom tune` is its command."""
