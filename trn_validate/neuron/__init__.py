"""Every interface to Neuron: host facts, releases and lineage, with no torch."""
