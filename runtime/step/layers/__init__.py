"""The layers of a model, each described once: its calls, parameters, kept bytes and collectives on one device.

A step, its parameters, its memory and the model that `validate run` trains follow from these descriptions.
"""
