"""What runs inside the ranks: torchtitan's fields, the data, the probe.

It knows nothing of the rest of the product but the record types, and it is the only
part that imports torch.
"""
